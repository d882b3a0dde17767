//! Cases that were put to a real Envoy 1.40, and public bug reports, as tables.

use super::*;
use crate::units::Span;

const SECOND: Duration = Duration::from_secs(1);
const GATEWAY: Cause = Cause::ConsecutiveGatewayFailure;

fn key(n: usize) -> Key {
    (n, SocketAddr::from(([10, 0, 0, n as u8 + 1], 8080)))
}

fn rules(gateway: u32, server: u32) -> OutlierDetection {
    OutlierDetection {
        consecutive_gateway_errors: gateway,
        consecutive_5xx_errors: server,
        max_ejection_percent: 100,
        update_merge_window: Span::secs(0),
        ..OutlierDetection::default()
    }
}

/// Endpoints under test, at a time that only moves when it is told to.
struct Lab {
    hosts: Hosts,
    now: Instant,
    start: Instant,
}

impl Lab {
    fn new(count: usize, rules: OutlierDetection) -> Lab {
        let now = Instant::now();
        let mut hosts = Hosts::new(Some(rules), Simple::RoundRobin, now, 1);
        hosts.set_members(&(0..count).map(key).collect::<Vec<_>>(), now);
        Lab { hosts, now, start: now }
    }

    /// An attempt at this endpoint, whoever's turn it is.
    fn at(&mut self, n: usize, outcome: Outcome) -> Option<What> {
        let pick = Pick { key: key(n), probe: None };
        self.hosts.charge(pick, outcome, self.now).map(|event| event.what)
    }

    fn statuses(&mut self, n: usize, statuses: &[u16]) -> Option<usize> {
        let ejects = |lab: &mut Lab, status| matches!(lab.at(n, Outcome::Status(status)), Some(What::Ejected { .. }));
        statuses.iter().position(|status| ejects(self, *status)).map(|place| place + 1)
    }

    /// Goes on in time, looking whenever it is due; what happened, and when.
    fn wait(&mut self, time: Duration) -> Vec<(f64, Event)> {
        let end = self.now + time;
        let mut events = Vec::new();
        while let Some(due) = self.hosts.due().filter(|due| *due <= end) {
            self.now = due;
            let at = (due - self.start).as_secs_f64();
            events.extend(self.hosts.look(due).into_iter().map(|event| (at, event)));
        }
        self.now = end;
        events
    }

    fn used(&mut self, picks: usize) -> Vec<Result<usize, NoHost>> {
        (0..picks)
            .map(|_| {
                let pick = self.hosts.pick(self.now, &[]);
                if let Ok(pick) = pick {
                    self.hosts.charge(pick, Outcome::Cancelled, self.now);
                }
                pick.map(|pick| pick.key.0)
            })
            .collect()
    }

    /// Goes on until the endpoint is in use again; how long that took.
    fn lasts(&mut self, n: usize) -> f64 {
        let before = self.now;
        while !self.hosts.is_in_use(key(n)) {
            self.now = self.hosts.due().expect("a look to come");
            self.hosts.look(self.now);
        }
        (self.now - before).as_secs_f64()
    }
}

#[test]
fn the_counters_are_those_of_envoy() {
    // What is sent with a threshold of 3, and after which answer each counter ejects alone.
    for (statuses, gateway, server) in [
        (&[502, 502, 502][..], Some(3), Some(3)),
        (&[503, 504, 502], Some(3), Some(3)),
        (&[502, 502, 200, 502, 502], None, None),
        (&[502, 502, 404, 502, 502], None, None),
        (&[502, 502, 302, 502, 502], None, None),
        (&[502, 502, 500, 502, 502], None, Some(3)),
        (&[500, 500, 500], None, Some(3)),
        (&[502, 502, 599, 502], None, Some(3)),
    ] {
        assert_eq!(Lab::new(1, rules(3, 0)).statuses(0, statuses), gateway, "{statuses:?}, gateway errors");
        assert_eq!(Lab::new(1, rules(0, 3)).statuses(0, statuses), server, "{statuses:?}, 5xx");
    }
}

#[test]
fn where_both_counters_are_full_the_gateway_one_is_told() {
    let mut lab = Lab::new(1, rules(2, 2));
    lab.at(0, Outcome::Status(502));
    let told = lab.at(0, Outcome::Status(502));
    assert!(matches!(told, Some(What::Ejected { cause: GATEWAY, number: 1, .. })), "{told:?}");
}

#[test]
fn a_counter_survives_looks_as_long_as_its_endpoint_is_in_use() {
    let mut lab = Lab::new(1, rules(3, 0));
    assert_eq!(lab.statuses(0, &[502, 502]), None);
    lab.wait(40 * SECOND);
    assert_eq!(lab.statuses(0, &[502]), Some(1));
}

#[test]
fn failures_without_an_answer_count_and_a_client_that_leaves_does_not() {
    for outcome in [Outcome::ConnectFailure, Outcome::Timeout, Outcome::Broken] {
        let mut lab = Lab::new(1, rules(3, 0));
        assert!(lab.at(0, outcome).is_none() && lab.at(0, outcome).is_none());
        // envoy#41985: neutral, not a success either.
        assert!(lab.at(0, Outcome::Cancelled).is_none());
        assert!(matches!(lab.at(0, outcome), Some(What::Ejected { .. })), "{outcome:?}");
    }
}

#[test]
fn errors_of_500_never_eject_where_only_gateway_errors_count() {
    let mut lab = Lab::new(2, rules(3, 0));
    assert_eq!(lab.statuses(0, &[500; 100]), None);
}

#[test]
fn a_split_breaker_still_ejects_an_endpoint_that_hangs() {
    let split = OutlierDetection {
        split_external_local_origin_errors: true,
        consecutive_local_origin_failures: 2,
        ..rules(3, 3)
    };
    for outcome in [Outcome::ConnectFailure, Outcome::Timeout] {
        let mut lab = Lab::new(1, split.clone());
        assert!(lab.at(0, outcome).is_none());
        let told = lab.at(0, outcome);
        let local = matches!(told, Some(What::Ejected { cause: Cause::ConsecutiveLocalOriginFailure, .. }));
        assert!(local, "{outcome:?}: {told:?}");
    }
    // And local failures leave the other counters alone.
    let mut lab = Lab::new(1, split);
    lab.statuses(0, &[502, 502]);
    lab.at(0, Outcome::Timeout);
    assert_eq!(lab.statuses(0, &[502]), Some(1));
}

#[test]
fn no_more_are_ejected_than_the_percentage_allows() {
    // Hosts, percentage, always one: how many go when all fail.
    for (hosts, percent, always, gone) in [
        (2, 10, false, 0),
        (2, 50, false, 1),
        (2, 99, false, 1),
        (2, 100, false, 2),
        (1, 10, false, 0),
        (1, 100, false, 1),
        (3, 33, false, 0),
        (3, 34, false, 1),
        (10, 10, false, 1),
        (4, 75, false, 3),
        (2, 10, true, 1),
        (2, 0, true, 1),
        (1, 10, true, 1),
    ] {
        let some = OutlierDetection { max_ejection_percent: percent, always_eject_one_host: always, ..rules(2, 0) };
        let mut lab = Lab::new(hosts, some);
        for host in 0..hosts {
            lab.statuses(host, &[502; 4]);
        }
        assert_eq!(lab.hosts.ejected(), gone, "{hosts} hosts, {percent} %, always one: {always}");
        assert_eq!(lab.hosts.refused(), (hosts - gone) as u64 * 2, "{hosts} hosts, {percent} %");
    }
}

#[test]
fn a_refused_ejection_is_not_the_last_one() {
    let mut lab = Lab::new(2, OutlierDetection { max_ejection_percent: 10, ..rules(2, 0) });
    let told: Vec<_> = (0..8).filter_map(|_| lab.at(0, Outcome::Status(502))).collect();
    assert_eq!(told, [What::Refused { cause: GATEWAY }; 4]);
}

#[test]
fn an_endpoint_that_goes_on_failing_is_ejected_again_and_again() {
    let mut lab = Lab::new(1, rules(3, 0));
    for number in 1..=3 {
        let told = [502, 502, 502].map(|status| lab.at(0, Outcome::Status(status)));
        assert!(matches!(told[2], Some(What::Ejected { number: n, .. }) if n == number), "{told:?}");
        lab.lasts(0);
    }
}

#[test]
fn an_ejection_lasts_its_multiple_of_the_base_and_then_until_the_next_look() {
    // Interval, base, longest, and what a real one measured less its own delays.
    for (interval, base, longest, lasts) in [
        (1000, 2500, 300_000, [3.0, 5.0, 8.0, 10.0]),
        (1000, 2000, 5000, [2.0, 4.0, 5.0, 5.0]),
        (1000, 200, 300_000, [1.0, 1.0, 1.0, 1.0]),
    ] {
        let mut lab = Lab::new(
            1,
            OutlierDetection {
                interval: Span::millis(interval),
                base_ejection_time: Span::millis(base),
                max_ejection_time: Span::millis(longest),
                ..rules(1, 0)
            },
        );
        for (number, lasts) in lasts.into_iter().enumerate() {
            lab.statuses(0, &[502]);
            let lasted = lab.lasts(0);
            assert!((lasted - lasts).abs() < 0.01, "ejection {} at base {base} lasted {lasted} s", number + 1);
        }
    }
}

#[test]
fn each_healthy_look_but_the_first_takes_one_from_the_multiplier() {
    // Seconds of health after three ejections, and how long the fourth one lasts (base and interval 1 s).
    for (healthy, lasts) in [(500, 4), (1500, 4), (2500, 3), (3500, 2), (6500, 1)] {
        let mut lab =
            Lab::new(1, OutlierDetection { interval: Span::secs(1), base_ejection_time: Span::secs(1), ..rules(1, 0) });
        for _ in 0..3 {
            lab.statuses(0, &[502]);
            lab.lasts(0);
        }
        lab.wait(Duration::from_millis(healthy));
        let Some(What::Ejected { lasts: Some(lasted), .. }) = lab.at(0, Outcome::Status(502)) else {
            panic!("not ejected after {healthy} ms");
        };
        assert_eq!(lasted, lasts * SECOND, "after {healthy} ms of health");
    }
}

#[test]
fn too_few_endpoints_are_a_panic_in_which_all_are_used() {
    for (least, ejected, used) in [
        (0, 1, vec![Ok(1); 4]),
        (50, 1, vec![Ok(1); 4]),
        (51, 1, vec![Ok(0), Ok(1), Ok(0), Ok(1)]),
        (0, 2, vec![Err(NoHost::AllEjected); 4]),
        (1, 2, vec![Ok(0), Ok(1), Ok(0), Ok(1)]),
        (50, 2, vec![Ok(0), Ok(1), Ok(0), Ok(1)]),
    ] {
        let mut lab = Lab::new(2, OutlierDetection { min_health_percent: least, ..rules(1, 0) });
        for host in 0..ejected {
            lab.statuses(host, &[502]);
        }
        assert_eq!(lab.used(4), used, "{ejected} of 2 ejected, minHealthPercent {least}");
    }
}

#[test]
fn a_second_change_waits_until_the_merge_window_is_over() {
    let mut lab = Lab::new(2, OutlierDetection { update_merge_window: Span::secs(1), ..rules(1, 0) });
    // The set was made when the node started, long ago.
    lab.wait(5 * SECOND);
    lab.statuses(0, &[502]);
    lab.wait(Duration::from_millis(70));
    assert!(matches!(lab.at(1, Outcome::Status(502)), Some(What::Ejected { .. })), "decided at once");
    assert_eq!(lab.used(2), [Ok(1); 2], "and used for a whole window from then on");
    lab.wait(Duration::from_millis(990));
    assert_eq!(lab.used(1), [Ok(1)]);
    lab.wait(Duration::from_millis(10));
    assert_eq!(lab.used(1), [Err(NoHost::AllEjected)]);
    // Both return in one look: the second one a window later.
    assert_eq!(lab.wait(34 * SECOND).len(), 2);
    assert_eq!(lab.used(2), [Ok(0); 2], "at 40.0 s");
    lab.wait(SECOND);
    assert_eq!(lab.used(4).iter().filter(|used| **used == Ok(1)).count(), 2);
}

#[test]
fn who_returns_has_the_full_share_at_once_and_needs_as_many_failures_again() {
    let mut lab = Lab::new(2, rules(3, 0));
    lab.statuses(0, &[502; 3]);
    // Two failures that were under way at the ejection arrive while it is out: they are forgotten.
    assert_eq!(lab.statuses(0, &[502; 5]), None);
    lab.lasts(0);
    let used = lab.used(40);
    assert_eq!(used.iter().filter(|used| **used == Ok(0)).count(), 20);
    assert_eq!(lab.statuses(0, &[502; 3]), Some(3));
}

#[test]
fn members_keep_their_record_and_who_is_gone_no_longer_counts() {
    let mut lab = Lab::new(4, OutlierDetection { max_ejection_percent: 75, ..rules(1, 0) });
    for host in 0..4 {
        lab.statuses(host, &[502]);
    }
    assert_eq!(lab.used(2), [Ok(3); 2]);
    // istio#20135: the only good one leaves.
    assert!(!lab.hosts.is_beyond_percentage());
    lab.hosts.set_members(&[key(0), key(1), key(2)], lab.now);
    assert!(lab.hosts.is_beyond_percentage());
    assert_eq!(lab.hosts.ejected(), 3);
    lab.hosts.set_members(&[key(0), key(4)], lab.now);
    assert_eq!((lab.hosts.ejected(), lab.used(2)), (1, vec![Ok(4); 2]));
}

#[test]
fn a_retry_goes_elsewhere_while_there_is_an_elsewhere() {
    let mut lab = Lab::new(2, rules(3, 0));
    for _ in 0..20 {
        assert_eq!(lab.hosts.pick(lab.now, &[key(0)]).map(|pick| pick.key), Ok(key(1)));
    }
    let mut lone = Lab::new(1, rules(3, 0));
    assert_eq!(lone.hosts.pick(lone.now, &[key(0)]).map(|pick| pick.key), Ok(key(0)));
}

#[test]
fn the_less_busy_of_two_is_preferred_and_nobody_starves_it() {
    let now = Instant::now();
    let mut hosts = Hosts::new(None, Simple::LeastRequest, now, 1);
    hosts.set_members(&[key(0), key(1)], now);
    // Endpoint 0 hangs: what it gets stays with it.
    let got = (0..100)
        .filter(|_| {
            let pick = hosts.pick(now, &[]).expect("an endpoint");
            if pick.key == key(1) {
                hosts.charge(pick, Outcome::Status(200), now);
            }
            pick.key == key(0)
        })
        .count();
    assert_eq!(got, 1, "with replacement it would be about 25");
}

#[test]
fn one_probe_shows_whether_an_endpoint_is_well_again() {
    let probing = OutlierDetection { probe: Some(1), base_ejection_time: Span::secs(5), ..rules(1, 0) };
    let mut lab = Lab::new(1, probing);
    lab.statuses(0, &[502]);
    assert_eq!(lab.used(1), [Err(NoHost::AllEjected)]);
    // Its time is up, without a look.
    lab.wait(5 * SECOND);
    let probe = lab.hosts.pick(lab.now, &[]).expect("a probe");
    assert_eq!(probe.probe, Some(1));
    assert_eq!(lab.hosts.pick(lab.now, &[]), Err(NoHost::AllEjected), "one at a time, however many ask");
    // Its caller leaves: another one may try (resilience4j#935).
    assert_eq!(lab.hosts.charge(probe, Outcome::Cancelled, lab.now), None);
    let probe = lab.hosts.pick(lab.now, &[]).expect("another probe");
    let event = lab.hosts.charge(probe, Outcome::Status(503), lab.now).expect("ejected again");
    // A second answer of the same probe's time says nothing about the new one.
    assert_eq!(lab.hosts.charge(probe, Outcome::Status(200), lab.now), None);
    let again = What::Ejected { cause: Cause::FailedProbe, number: 2, lasts: Some(10 * SECOND) };
    assert_eq!(event.what, again);
    lab.wait(10 * SECOND);
    let probe = lab.hosts.pick(lab.now, &[]).expect("a probe");
    // It answers, if only that there is no such thing.
    let event = lab.hosts.charge(probe, Outcome::Status(404), lab.now).expect("back");
    assert!(matches!(event.what, What::Returned { .. }));
    assert_eq!(lab.used(2), [Ok(0); 2]);
}

#[test]
fn an_endpoint_can_be_ejected_and_returned_by_hand() {
    let mut lab = Lab::new(2, OutlierDetection { max_ejection_percent: 0, ..rules(1, 0) });
    assert!(lab.hosts.eject(key(0).1, lab.now).is_some());
    assert_eq!(lab.hosts.eject(key(0).1, lab.now), None, "it is out already");
    assert!(lab.wait(1000 * SECOND).is_empty(), "nobody returns it but a hand");
    assert_eq!(lab.used(2), [Ok(1); 2]);
    assert!(lab.hosts.bring_back_by_hand(key(0).1, lab.now).is_some());
    assert_eq!(lab.hosts.bring_back_by_hand(key(0).1, lab.now), None, "it is in use already");
    assert_eq!(lab.used(4).iter().filter(|used| **used == Ok(0)).count(), 2);
}

#[test]
fn turns_are_shared_by_all_who_ask_and_go_on_when_the_set_changes() {
    let now = Instant::now();
    let mut hosts = Hosts::new(None, Simple::RoundRobin, now, 1);
    assert_eq!(hosts.pick(now, &[]), Err(NoHost::Empty));
    hosts.set_members(&[key(0), key(1), key(2)], now);
    let turns: Vec<usize> = (0..6).map(|_| hosts.pick(now, &[]).expect("a turn").key.0).collect();
    assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_threshold_that_is_lowered_below_the_count_still_ejects() {
    let mut lab = Lab::new(1, rules(10, 0));
    assert_eq!(lab.statuses(0, &[502; 5]), None);
    lab.hosts.set_rules(Some(rules(3, 0)), Simple::RoundRobin, lab.now);
    assert_eq!(lab.statuses(0, &[502; 5]), Some(3));
}
