//! Whether the node has loaded what it needs before its first request: after a while, or when it is told.

use std::sync::Mutex;

use tokio::time::Instant;

#[derive(Debug)]
pub(super) struct Loading(Mutex<State>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Until(Instant),
    Told(bool),
}

impl Loading {
    pub(super) fn until(end: Instant) -> Loading {
        Loading(Mutex::new(State::Until(end)))
    }

    pub(super) fn is_done(&self, now: Instant) -> bool {
        match *self.0.lock().expect("nobody panics with the lock held") {
            State::Until(end) => now >= end,
            State::Told(done) => done,
        }
    }

    /// From now on it is as told, whatever the time.
    pub(super) fn tell(&self, done: bool) {
        *self.0.lock().expect("nobody panics with the lock held") = State::Told(done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn it_is_done_in_time_or_when_told() {
        let start = Instant::now();
        let end = start + Duration::from_secs(20);
        let loading = Loading::until(end);
        assert!(!loading.is_done(start));
        assert!(!loading.is_done(end - Duration::from_millis(1)));
        assert!(loading.is_done(end));
        loading.tell(false);
        assert!(!loading.is_done(end + Duration::from_secs(3600)));
        loading.tell(true);
        assert!(loading.is_done(start));
    }
}
