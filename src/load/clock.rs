//! Waits for a moment more exactly than the runtime's timer, which knows whole milliseconds alone.

use std::io;
use std::time::Instant;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::net::unix::pipe::Receiver;

/// One timer of the kernel's, which is read as a pipe is.
pub(super) struct Clock(Receiver);

impl Clock {
    /// # Errors
    /// If the system gives no timer.
    pub(super) fn new() -> io::Result<Clock> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        Ok(Clock(Receiver::from_owned_fd_unchecked(timer)?))
    }

    /// Completes at `moment`, or at once if that is past.
    pub(super) async fn until(&self, moment: Instant) -> io::Result<()> {
        let left = moment.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let once = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: never, it_value: once })?;
        // How often it has gone off since: one number of eight bytes.
        let mut expirations = [0; 8];
        loop {
            self.0.readable().await?;
            match self.0.try_read(&mut expirations) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read.map(|_| ()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn it_is_never_early() {
        let clock = Clock::new().expect("a timer");
        for micros in [0, 1, 150, 2_500] {
            let moment = Instant::now() + Duration::from_micros(micros);
            clock.until(moment).await.expect("a timer");
            assert!(Instant::now() >= moment, "{micros} µs");
        }
    }

    #[tokio::test]
    async fn a_wait_that_was_given_up_does_not_end_the_next_one() {
        let clock = Clock::new().expect("a timer");
        let short = clock.until(Instant::now() + Duration::from_millis(5));
        assert!(tokio::time::timeout(Duration::ZERO, short).await.is_err());
        let moment = Instant::now() + Duration::from_millis(20);
        clock.until(moment).await.expect("a timer");
        assert!(Instant::now() >= moment);
    }
}
