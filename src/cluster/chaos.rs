//! When which of a host's containers is struck: what Pumba's `--random --interval 5s` does on each host, as pure
//! data. Strikes nothing.

use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

/// Chaos on several hosts. On each one, a randomly chosen container is struck once an interval.
#[derive(Clone, Debug)]
pub struct Chaos {
    /// How many containers each host has. Those that are not part of the experiment are victims too, as there.
    pub hosts: Vec<usize>,
    pub interval: Duration,
    /// How long a victim suffers; not longer than the interval.
    pub duration: Duration,
    pub seed: u64,
}

/// One victim's time of suffering, from the start of the chaos.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stroke {
    pub from: Duration,
    pub until: Duration,
    pub host: usize,
    /// Its place among the host's containers.
    pub container: usize,
}

impl Chaos {
    /// The strokes in the order of their start, without end. The hosts strike independently: each starts at a random
    /// point of the interval.
    pub fn strokes(&self) -> impl Iterator<Item = Stroke> + Send + use<> {
        let mut draws = Xoshiro256PlusPlus::seed_from_u64(self.seed);
        let mut hosts: Vec<(Duration, usize, usize)> = self
            .hosts
            .iter()
            .enumerate()
            .filter(|(_, containers)| **containers > 0)
            .map(|(host, containers)| (self.interval.mul_f64(draws.random::<f64>()), host, *containers))
            .collect();
        hosts.sort_unstable();
        let Chaos { interval, duration, .. } = *self;
        // Without a victim there is no round either: a search for its first stroke would never end.
        let rounds = if hosts.is_empty() { 0 } else { u32::MAX };
        (0..rounds).flat_map(move |round| {
            let strokes: Vec<Stroke> = hosts
                .iter()
                .map(|(phase, host, containers)| {
                    let from = *phase + interval * round;
                    Stroke { from, until: from + duration, host: *host, container: draws.random_range(0..*containers) }
                })
                .collect();
            strokes
        })
    }
}

/// The share of the time from zero to `end` in which no span of `busy` lasts. They may overlap; their order is free.
pub fn free_share(busy: &[(Duration, Duration)], end: Duration) -> f64 {
    let mut spans: Vec<_> = busy.iter().map(|(from, until)| (*from, (*until).min(end))).collect();
    spans.sort_unstable();
    let (mut free, mut reached) = (Duration::ZERO, Duration::ZERO);
    for (from, until) in spans {
        free += from.min(end).saturating_sub(reached);
        reached = reached.max(until);
    }
    (free + end.saturating_sub(reached)).div_duration_f64(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn chaos(hosts: &[usize]) -> Chaos {
        Chaos { hosts: hosts.to_vec(), interval: 5 * SECOND, duration: 3 * SECOND, seed: 7 }
    }

    #[test]
    fn each_host_strikes_one_of_its_own_once_an_interval() {
        let strokes: Vec<Stroke> = chaos(&[3, 0, 4]).strokes().take(2000).collect();
        assert!(strokes.is_sorted_by_key(|stroke| stroke.from));
        for (host, containers) in [(0, 3), (2, 4)] {
            let own: Vec<_> = strokes.iter().filter(|stroke| stroke.host == host).collect();
            assert_eq!(own.len(), 1000);
            assert!(own.windows(2).all(|pair| pair[1].from - pair[0].from == 5 * SECOND));
            assert!(own.iter().all(|stroke| stroke.until - stroke.from == 3 * SECOND));
            for container in 0..containers {
                let hits = own.iter().filter(|stroke| stroke.container == container).count();
                let even = 1000 / containers;
                assert!(
                    hits.abs_diff(even) < even / 4,
                    "{hits} of 1000 strokes hit container {container} of {containers}"
                );
            }
        }
        assert_eq!(strokes, chaos(&[3, 0, 4]).strokes().take(2000).collect::<Vec<_>>(), "same seed, same strokes");
        assert_eq!(chaos(&[0]).strokes().next(), None, "nobody to strike");
    }

    #[test]
    fn what_is_free_is_what_no_stroke_covers() {
        let second = |n| n * SECOND;
        let share = |busy: &[(u32, u32)]| {
            free_share(
                &busy.iter().map(|(from, until)| (second(*from), second(*until))).collect::<Vec<_>>(),
                second(10),
            )
        };
        for (busy, free) in [
            (&[][..], 1.0),
            (&[(2, 5)], 0.7),
            (&[(2, 5), (4, 6)], 0.6),
            (&[(4, 6), (0, 9), (3, 4)], 0.1),
            (&[(8, 12)], 0.8),
            (&[(0, 3), (11, 12)], 0.7),
        ] {
            assert!((share(busy) - free).abs() < 1e-9, "{busy:?}: {}", share(busy));
        }
    }

    #[test]
    fn three_hosts_that_always_hit_leave_the_time_that_independence_predicts() {
        // Over all phases the mean is (1 - 3/5)^3.
        let end = 500 * SECOND;
        let mean: f64 = (0..200)
            .map(|seed| {
                let strokes = Chaos { seed, ..chaos(&[3, 3, 3]) }.strokes().take_while(|stroke| stroke.from < end);
                let busy: Vec<_> = strokes.map(|stroke| (stroke.from, stroke.until)).collect();
                free_share(&busy, end)
            })
            .sum::<f64>()
            / 200.0;
        assert!((mean - 0.064).abs() < 0.02, "{mean}");
    }
}
