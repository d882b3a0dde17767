//! How a quantity of time is spread: percentiles from a histogram, mean and deviation from exact sums.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Digits that a percentile is exact to.
const DIGITS: u8 = 3;

/// Times that were measured, kept in bounded memory.
#[derive(Clone, Debug)]
pub struct Spread {
    nanos: Histogram<u64>,
    sum: f64,
    squares: f64,
    least: Duration,
    most: Duration,
}

/// The figures of a [`Spread`], in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    pub min: f64,
    pub p50: f64,
    pub p75: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
    pub mean: f64,
    pub sd: f64,
}

impl Default for Spread {
    fn default() -> Spread {
        Spread {
            nanos: Histogram::new(DIGITS).expect("a number of digits that it takes"),
            sum: 0.0,
            squares: 0.0,
            least: Duration::MAX,
            most: Duration::ZERO,
        }
    }
}

impl Spread {
    pub fn add(&mut self, time: Duration) {
        // A year's nanoseconds fit in, and in a few hundred kilobytes.
        self.nanos.record(time.as_nanos() as u64).expect("it grows as it has to");
        let ms = ms(time);
        self.sum += ms;
        self.squares += ms * ms;
        self.least = self.least.min(time);
        self.most = self.most.max(time);
    }

    pub fn merge(&mut self, other: &Spread) {
        self.nanos.add(&other.nanos).expect("it grows as it has to");
        self.sum += other.sum;
        self.squares += other.squares;
        self.least = self.least.min(other.least);
        self.most = self.most.max(other.most);
    }

    pub fn count(&self) -> u64 {
        self.nanos.len()
    }

    /// The time within which `percent` of all were, in milliseconds.
    pub fn percentile(&self, percent: f64) -> f64 {
        // The histogram knows the ends only by their bucket.
        ms(Duration::from_nanos(self.nanos.value_at_percentile(percent)).clamp(self.least.min(self.most), self.most))
    }

    /// How many there were from `from` up to, but without, `to`, both in milliseconds.
    pub fn count_between(&self, from: f64, to: f64) -> u64 {
        let nanos = |ms: f64| (ms.max(0.0) * 1e6) as u64;
        let values = self.nanos.iter_recorded().skip_while(|value| value.value_iterated_to() < nanos(from));
        let within = values.take_while(|value| value.value_iterated_to() < nanos(to));
        within.map(|value| value.count_at_value()).sum()
    }

    /// `None` where nothing was measured.
    pub fn times(&self) -> Option<Times> {
        if self.count() == 0 {
            return None;
        }
        let count = self.count() as f64;
        let mean = self.sum / count;
        let times = Times {
            min: ms(self.least),
            p50: self.percentile(50.0),
            p75: self.percentile(75.0),
            p95: self.percentile(95.0),
            p99: self.percentile(99.0),
            max: ms(self.most),
            mean,
            sd: (self.squares / count - mean * mean).max(0.0).sqrt(),
        };
        Some(times.map(|ms| (ms * 1e3).round() / 1e3))
    }
}

impl Times {
    fn map(self, with: impl Fn(f64) -> f64) -> Times {
        let Times { min, p50, p75, p95, p99, max, mean, sd } = self;
        let [min, p50, p75, p95, p99, max, mean, sd] = [min, p50, p75, p95, p99, max, mean, sd].map(with);
        Times { min, p50, p75, p95, p99, max, mean, sd }
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(ms: impl IntoIterator<Item = u64>) -> Spread {
        let mut spread = Spread::default();
        ms.into_iter().for_each(|ms| spread.add(Duration::from_millis(ms)));
        spread
    }

    fn is_near(found: f64, expected: f64) -> bool {
        (found - expected).abs() <= expected * 0.001
    }

    #[test]
    fn figures_are_those_of_the_textbook() {
        let times = spread([2, 4, 4, 4, 5, 5, 7, 9]).times().expect("eight");
        assert_eq!((times.min, times.max, times.mean, times.sd), (2.0, 9.0, 5.0, 2.0));
        assert!(is_near(times.p50, 4.0) && is_near(times.p75, 5.0) && is_near(times.p99, 9.0), "{times:?}");
    }

    #[test]
    fn percentiles_are_exact_to_a_thousandth_over_six_decades() {
        let spread = spread(1..=100_000);
        for (percent, ms) in [(50.0, 50_000.0), (95.0, 95_000.0), (99.9, 99_900.0), (100.0, 100_000.0)] {
            assert!(is_near(spread.percentile(percent), ms), "{percent}: {}", spread.percentile(percent));
        }
    }

    #[test]
    fn two_halves_merged_are_the_whole() {
        let mut half = spread(1..=50);
        half.merge(&spread(51..=100));
        assert_eq!(half.times(), spread(1..=100).times());
    }

    #[test]
    fn nothing_measured_has_no_figures() {
        assert_eq!(spread([]).times(), None);
        let mut empty = spread([]);
        empty.merge(&spread([]));
        assert_eq!(empty.times(), None);
    }

    #[test]
    fn a_single_time_is_every_figure_to_the_digit() {
        let times = spread([1234]).times().expect("one");
        assert_eq!((times.min, times.p50, times.p99, times.max, times.sd), (1234.0, 1234.0, 1234.0, 1234.0, 0.0));
    }

    #[test]
    fn counts_of_ranges_add_up() {
        let spread = spread(0..1000);
        let sum: u64 =
            (0..10).map(|bin| spread.count_between(f64::from(bin) * 100.0, f64::from(bin + 1) * 100.0)).sum();
        assert_eq!(sum, 1000);
    }
}
