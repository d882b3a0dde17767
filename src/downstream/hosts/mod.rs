//! All endpoints of the next hop: who is in use, whose turn it is, who is ejected and who comes back. Takes the time,
//! does no I/O.

mod detector;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

pub(crate) use detector::{Cause, Outcome};
use detector::{Detector, State};

use crate::manifest::{OutlierDetection, Simple};

/// An endpoint: its target's place in the list, and its address.
pub(crate) type Key = (usize, SocketAddr);

/// How often a retry draws again for an endpoint that was not tried yet, as Istio sets Envoy.
const SELECTION_ATTEMPTS: usize = 5;

/// Something that happened to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) key: Key,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum What {
    /// `number`: how many times by now; `lasts`: until it may come back, `None` for ever.
    Ejected { cause: Cause, number: u32, lasts: Option<Duration> },
    /// It would have been ejected, but too many are already.
    Refused { cause: Cause },
    /// In use again after so long.
    Returned { after: Duration },
}

/// The endpoint that was chosen for one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    pub(crate) key: Key,
    /// The attempt shows whether an ejected endpoint is well again: after its so many-th ejection.
    pub(crate) probe: Option<u32>,
}

/// Why there is no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoHost {
    /// None is known.
    Empty,
    AllEjected,
}

#[derive(Debug)]
struct Host {
    key: Key,
    detector: Detector,
    /// In the set that calls are made to: follows the detector, at times later.
    in_use: bool,
    active: u32,
    probes: u32,
    passed: u32,
}

#[derive(Debug)]
pub(crate) struct Hosts {
    rules: Option<OutlierDetection>,
    balancer: Simple,
    hosts: Vec<Host>,
    turn: usize,
    draws: Xoshiro256PlusPlus,
    /// When the set in use was last changed, and when a change that waits is made.
    changed: Option<Instant>,
    change_due: Option<Instant>,
    next_look: Option<Instant>,
    refused: u64,
}

impl Hosts {
    pub(crate) fn new(rules: Option<OutlierDetection>, balancer: Simple, now: Instant, seed: u64) -> Hosts {
        let mut hosts = Hosts {
            rules: None,
            balancer,
            hosts: Vec::new(),
            turn: 0,
            draws: Xoshiro256PlusPlus::seed_from_u64(seed),
            changed: None,
            change_due: None,
            next_look: None,
            refused: 0,
        };
        hosts.set_rules(rules, balancer, now);
        hosts
    }

    /// New rules from now on. The endpoints keep their records; looks are taken anew from now, if they changed.
    pub(crate) fn set_rules(&mut self, rules: Option<OutlierDetection>, balancer: Simple, now: Instant) {
        self.balancer = balancer;
        if self.rules == rules {
            return;
        }
        self.next_look = rules.as_ref().map(|rules| now + *rules.interval);
        self.rules = rules;
        // A count that is beyond a new threshold would never equal it.
        self.hosts.iter_mut().for_each(|host| host.detector.forget());
        if self.rules.is_none() {
            // Nobody would look after those that are out.
            for host in self.hosts.iter_mut().filter(|host| host.detector.until().is_some()) {
                host.detector.come_back();
            }
            self.change_due = None;
            self.apply(now);
        }
    }

    pub(crate) fn rules(&self) -> Option<&OutlierDetection> {
        self.rules.as_ref()
    }

    /// The endpoints are these now. Those that stay keep their record; who is gone counts no more, and begins anew if
    /// it comes back.
    pub(crate) fn set_members(&mut self, keys: &[Key], now: Instant) {
        if self.hosts.iter().map(|host| host.key).eq(keys.iter().copied()) {
            return;
        }
        let mut before = std::mem::take(&mut self.hosts);
        for key in keys {
            let known = before.iter().position(|host| host.key == *key).map(|place| before.swap_remove(place));
            self.hosts.push(known.unwrap_or_else(|| Host {
                key: *key,
                detector: Detector::new(),
                in_use: true,
                active: 0,
                probes: 0,
                passed: 0,
            }));
        }
        // Not a change of who is well: that of the set itself opens no window.
        let changed = self.changed;
        self.apply(now);
        self.changed = changed;
    }

    /// The endpoint for one attempt; `tried` are those of this call that failed already.
    ///
    /// # Errors
    /// If there is none, or none that may be used.
    pub(crate) fn pick(&mut self, now: Instant, tried: &[Key]) -> Result<Pick, NoHost> {
        self.settle(now);
        if let Some(place) = self.to_probe(now) {
            let host = &mut self.hosts[place];
            host.probes += 1;
            host.active += 1;
            return Ok(Pick { key: host.key, probe: Some(host.detector.ejections) });
        }
        let mut place = self.choose()?;
        for _ in 0..SELECTION_ATTEMPTS {
            if !tried.contains(&self.hosts[place].key) {
                break;
            }
            place = self.choose()?;
        }
        let host = &mut self.hosts[place];
        host.active += 1;
        Ok(Pick { key: host.key, probe: None })
    }

    fn choose(&mut self) -> Result<usize, NoHost> {
        if self.hosts.is_empty() {
            return Err(NoHost::Empty);
        }
        let usable = self.hosts.iter().filter(|host| host.in_use).count();
        let least = self.rules.as_ref().map_or(0, |rules| rules.min_health_percent as usize);
        // Panic: with too few left, an ejection is worse than a bad endpoint.
        let all = usable * 100 < least * self.hosts.len();
        let count = if all { self.hosts.len() } else { usable };
        if count == 0 {
            return Err(NoHost::AllEjected);
        }
        let nth = match self.balancer {
            Simple::RoundRobin => {
                self.turn = self.turn.wrapping_add(1);
                self.turn.wrapping_sub(1) % count
            }
            Simple::Random => self.draws.random_range(0..count),
            Simple::LeastRequest => self.less_busy(count, all),
        };
        Ok(self.nth(nth, all))
    }

    fn nth(&self, nth: usize, all: bool) -> usize {
        let mut used = self.hosts.iter().enumerate().filter(|(_, host)| all || host.in_use);
        used.nth(nth).map_or(0, |(place, _)| place)
    }

    /// The less busy of two different ones. (Envoy draws with replacement, so that of two endpoints a hanging one
    /// still gets a quarter.)
    fn less_busy(&mut self, count: usize, all: bool) -> usize {
        if count == 1 {
            return 0;
        }
        let one = self.draws.random_range(0..count);
        let other = (one + self.draws.random_range(1..count)) % count;
        let active = |nth| self.hosts[self.nth(nth, all)].active;
        if active(other) < active(one) { other } else { one }
    }

    fn to_probe(&self, now: Instant) -> Option<usize> {
        let probes = self.rules.as_ref()?.probe?;
        let wants = |host: &Host| host.detector.may_return(now) && host.probes + host.passed < probes;
        self.hosts.iter().position(wants)
    }

    /// An attempt at the picked endpoint has ended. What that changed.
    pub(crate) fn charge(&mut self, pick: Pick, outcome: Outcome, now: Instant) -> Option<Event> {
        let place = self.hosts.iter().position(|host| host.key == pick.key)?;
        self.hosts[place].active = self.hosts[place].active.saturating_sub(1);
        let rules = self.rules.clone()?;
        if let Some(ejection) = pick.probe {
            self.hosts[place].probes = self.hosts[place].probes.saturating_sub(1);
            let detector = &self.hosts[place].detector;
            // One that ends after the endpoint was brought back, or was ejected anew, decides nothing.
            let decides = detector.is_ejected() && detector.ejections == ejection;
            return decides.then(|| self.probed(place, outcome, now, &rules)).flatten();
        }
        let host = &mut self.hosts[place];
        let cause = host.detector.charge(outcome, &rules)?;
        if host.detector.is_ejected() {
            // A late failure of an endpoint that is out already: the return clears its counters.
            return None;
        }
        Some(self.try_eject(place, cause, now, &rules))
    }

    fn try_eject(&mut self, place: usize, cause: Cause, now: Instant, rules: &OutlierDetection) -> Event {
        let ejected = self.hosts.iter().filter(|host| host.detector.is_ejected()).count();
        let within = (ejected + 1) * 100 <= rules.max_ejection_percent as usize * self.hosts.len();
        let first = rules.always_eject_one_host && ejected == 0;
        if !within && !first {
            self.refused += 1;
            return Event { key: self.hosts[place].key, what: What::Refused { cause } };
        }
        self.hosts[place].detector.eject(now, cause, rules);
        self.hosts[place].passed = 0;
        self.change(now);
        self.ejected_now(place, cause, now)
    }

    fn ejected_now(&self, place: usize, cause: Cause, now: Instant) -> Event {
        let Host { key, detector, .. } = &self.hosts[place];
        let lasts = detector.until().map(|until| until - now);
        Event { key: *key, what: What::Ejected { cause, number: detector.ejections, lasts } }
    }

    fn probed(&mut self, place: usize, outcome: Outcome, now: Instant, rules: &OutlierDetection) -> Option<Event> {
        let host = &mut self.hosts[place];
        if outcome == Outcome::Cancelled {
            // Whoever asked has gone.
            return None;
        }
        if outcome.is_failure() {
            host.passed = 0;
            host.detector.eject(now, Cause::FailedProbe, rules);
            return Some(self.ejected_now(place, Cause::FailedProbe, now));
        }
        host.passed += 1;
        (host.passed >= rules.probe.unwrap_or(1)).then(|| self.bring_back(place, now))
    }

    fn bring_back(&mut self, place: usize, now: Instant) -> Event {
        let host = &mut self.hosts[place];
        let after = match host.detector.state {
            State::Ejected { at, .. } => now - at,
            State::Healthy => Duration::ZERO,
        };
        host.passed = 0;
        host.detector.come_back();
        let key = host.key;
        self.change(now);
        Event { key, what: What::Returned { after } }
    }

    /// The next moment at which [`Hosts::look`] has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        [self.next_look, self.change_due].into_iter().flatten().min()
    }

    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.next_look
    }

    /// Looks who may come back, if it is time for that. The next look is one interval later.
    pub(crate) fn look(&mut self, now: Instant) -> Vec<Event> {
        self.settle(now);
        let mut events = Vec::new();
        let Some(rules) = self.rules.clone() else { return events };
        let Some(due) = self.next_look.filter(|due| now >= *due) else { return events };
        // On a grid: a look that is late must not make all that follow later, and with them the returns.
        let next = due + *rules.interval;
        self.next_look = Some(if next > now { next } else { now + *rules.interval });
        for place in 0..self.hosts.len() {
            let detector = &mut self.hosts[place].detector;
            if !detector.is_ejected() {
                detector.look();
            } else if rules.probe.is_none() && detector.may_return(now) {
                events.push(self.bring_back(place, now));
            }
        }
        events
    }

    /// Ejects by hand, whatever the share; nothing if it is out already or unknown.
    pub(crate) fn eject(&mut self, address: SocketAddr, now: Instant) -> Option<Event> {
        let place = self.hosts.iter().position(|host| host.key.1 == address && !host.detector.is_ejected())?;
        self.hosts[place].detector.eject_by_hand(now);
        self.change(now);
        Some(self.ejected_now(place, Cause::Operator, now))
    }

    /// Brings back by hand, whatever the time; nothing if it is in use or unknown.
    pub(crate) fn bring_back_by_hand(&mut self, address: SocketAddr, now: Instant) -> Option<Event> {
        let place = self.hosts.iter().position(|host| host.key.1 == address && host.detector.is_ejected())?;
        Some(self.bring_back(place, now))
    }

    /// Has a change of who is ejected take effect: at once where the last one is a window ago, else with all others
    /// when the window is over. That is Envoy's `update_merge_window`, and why of two endpoints that fail together
    /// the second one is used for another second.
    fn change(&mut self, now: Instant) {
        let window = self.rules.as_ref().map_or(Duration::ZERO, |rules| *rules.update_merge_window);
        match self.changed {
            // A whole window from the first change that waits: so a real one behaves.
            Some(changed) if now < changed + window => {
                self.change_due.get_or_insert(now + window);
            }
            _ => self.apply(now),
        }
    }

    fn settle(&mut self, now: Instant) {
        if self.change_due.is_some_and(|due| now >= due) {
            self.apply(now);
        }
    }

    fn apply(&mut self, now: Instant) {
        self.changed = Some(now);
        self.change_due = None;
        for host in &mut self.hosts {
            host.in_use = !host.detector.is_ejected();
        }
    }

    #[cfg(test)]
    pub(crate) fn is_in_use(&self, key: Key) -> bool {
        self.hosts.iter().any(|host| host.key == key && host.in_use)
    }

    /// Whether more are ejected than the percentage allows, as others have left.
    pub(crate) fn is_beyond_percentage(&self) -> bool {
        let most = self.rules.as_ref().map_or(100, |rules| rules.max_ejection_percent as usize);
        self.ejected() * 100 > most * self.hosts.len()
    }

    pub(crate) fn ejected(&self) -> usize {
        self.hosts.iter().filter(|host| host.detector.is_ejected()).count()
    }

    pub(crate) fn len(&self) -> usize {
        self.hosts.len()
    }

    /// Ejections that were refused as too many were out already.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    pub(crate) fn views(&self, now: Instant) -> Vec<View> {
        self.hosts.iter().map(|host| self.view(host, now)).collect()
    }

    fn view(&self, host: &Host, now: Instant) -> View {
        let Detector { state, ejections, multiplier, has_returned, .. } = &host.detector;
        let in_a_row = self.rules.as_ref().and_then(|rules| host.detector.in_a_row(rules));
        let health = match (*state, has_returned) {
            (State::Ejected { at, until, cause }, _) => Health::Ejected {
                since: now - at,
                left: until.map(|until| until.saturating_duration_since(now)),
                cause,
            },
            (State::Healthy, true) => Health::Returned,
            (State::Healthy, false) => Health::Healthy,
        };
        View {
            key: host.key,
            health,
            in_use: host.in_use,
            active: host.active,
            in_a_row,
            ejections: *ejections,
            multiplier: *multiplier,
        }
    }
}

/// One endpoint as it may be shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct View {
    pub(crate) key: Key,
    pub(crate) health: Health,
    pub(crate) in_use: bool,
    pub(crate) active: u32,
    /// Failures in a row, and how many eject it.
    pub(crate) in_a_row: Option<(u32, u32)>,
    pub(crate) ejections: u32,
    pub(crate) multiplier: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Health {
    Healthy,
    Ejected {
        since: Duration,
        left: Option<Duration>,
        cause: Cause,
    },
    /// It was ejected and is in use again.
    Returned,
}
