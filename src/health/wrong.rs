//! Ways not to check, for `/wrong/…` alone. Each is what somebody once had in production.

use std::sync::{Arc, Mutex};

use super::dependency::{Backend, Connection};
use super::verdict::Failure;

/// So many connections leak at most: the lesson is the database's limit, not the end of this process.
pub(super) const MOST_LEAKED: usize = 256;

/// A check that opens a connection each time and never closes one. Clones leak together.
#[derive(Clone, Default)]
pub(super) struct Leak(Arc<Mutex<Leaked>>);

#[derive(Default)]
struct Leaked {
    /// Held so that they stay open.
    connections: Vec<Connection>,
    opening: usize,
}

impl Leak {
    /// Asks over a new connection, and keeps it. How many are open, and what the database said.
    pub(super) async fn ask(&self, backend: &Backend) -> (usize, Result<(), Failure>) {
        let Some(opening) = self.opening() else {
            let why =
                format!("{MOST_LEAKED} connections have leaked, which is the most allowed here: restart the node");
            return (MOST_LEAKED, Err(Failure::said(why)));
        };
        let mut connection = match backend.open().await {
            Ok(connection) => connection,
            Err(failure) => return (self.open(), Err(failure)),
        };
        let result = connection.ask().await;
        drop(opening);
        let mut leaked = self.0.lock().expect("nobody panics with the lock held");
        if leaked.connections.len() < MOST_LEAKED {
            leaked.connections.push(connection);
        }
        (leaked.connections.len(), result)
    }

    fn open(&self) -> usize {
        self.0.lock().expect("nobody panics with the lock held").connections.len()
    }

    /// A place for one more; given back on drop, when it has become an open one or nothing.
    fn opening(&self) -> Option<Opening> {
        let mut leaked = self.0.lock().expect("nobody panics with the lock held");
        if leaked.connections.len() + leaked.opening >= MOST_LEAKED {
            return None;
        }
        leaked.opening += 1;
        Some(Opening(self.clone()))
    }
}

struct Opening(Leak);

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.0.lock().expect("nobody panics with the lock held").opening -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::dependency::{Mode, Sim};
    use super::*;

    #[tokio::test]
    async fn it_leaks_up_to_its_limit_and_then_says_so() {
        let (leak, backend) = (Leak::default(), Backend::Sim(Sim::new(Mode::Up)));
        for open in 1..=MOST_LEAKED {
            assert_eq!(leak.ask(&backend).await, (open, Ok(())));
        }
        let (open, refused) = leak.ask(&backend).await;
        assert_eq!(open, MOST_LEAKED);
        assert!(refused.expect_err("full").to_string().contains("256 connections have leaked"));
    }

    #[tokio::test]
    async fn a_database_that_refuses_leaks_nothing() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let kind = format!("tcp://{}", listener.local_addr().expect("bound")).parse().expect("a URL");
        drop(listener);
        let (leak, backend) = (Leak::default(), Backend::new(&kind).expect("no TLS in it"));
        assert_eq!(leak.ask(&backend).await, (0, Err(Failure::said("connection refused"))));
        assert_eq!(leak.0.lock().expect("no panic").opening, 0);
    }
}
