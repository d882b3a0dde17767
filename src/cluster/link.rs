//! A faulty link between two nodes: a TCP relay that holds data back as long as a retransmission would.
//!
//! A simulation, not packet loss: no packet is lost, and neither side's kernel notices anything. What a lost segment
//! does to whoever waits for it is its retransmission time-out (RFC 6298: 1 s for the handshake, at least 200 ms on
//! Linux for data, doubled each time), and that is what the relay waits. It does not play duplicate
//! acknowledgements, a shrinking congestion window, lost acknowledgements, or lost DNS datagrams.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

/// What fits into one segment on Ethernet.
const SEGMENT: usize = 1448;
/// Doubling ends here (RFC 6298 asks for at least 60 s).
const LONGEST_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a sender waits for an acknowledgement before it sends again, the first time.
#[derive(Clone, Copy, Debug)]
pub struct Retransmission {
    pub handshake: Duration,
    pub data: Duration,
}

impl Retransmission {
    /// Linux on a fast network.
    pub const LINUX: Retransmission =
        Retransmission { handshake: Duration::from_secs(1), data: Duration::from_millis(200) };

    /// The same where time runs `speed` times as fast.
    pub fn scaled(self, speed: f64) -> Retransmission {
        Retransmission { handshake: self.handshake.div_f64(speed), data: self.data.div_f64(speed) }
    }
}

/// Whose segments are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From whoever connects to whoever listens.
    There,
    Back,
}

/// A running relay; on drop it and all its connections end.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    shared: Arc<Shared>,
    _accepting: AbortOnDropHandle<()>,
}

#[derive(Debug)]
struct Shared {
    /// One after the other gets a connection, as Swarm's ingress and a service's virtual address do it.
    upstreams: Vec<SocketAddr>,
    turn: AtomicUsize,
    there: Direction,
    back: Direction,
    retransmission: Retransmission,
    draws: Mutex<Xoshiro256PlusPlus>,
}

#[derive(Debug, Default)]
struct Direction {
    /// The probability as the bits of an `f64`.
    loss: AtomicU64,
    lost: AtomicU64,
    sent: AtomicU64,
}

impl Link {
    /// Listens on a free port of this machine and relays to `upstreams` in turn, without loss at first.
    ///
    /// # Errors
    /// If no port can be had.
    pub async fn start(upstreams: Vec<SocketAddr>, retransmission: Retransmission, seed: u64) -> io::Result<Link> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            upstreams,
            turn: AtomicUsize::new(0),
            there: Direction::default(),
            back: Direction::default(),
            retransmission,
            draws: Mutex::new(Xoshiro256PlusPlus::seed_from_u64(seed)),
        });
        let accepting = AbortOnDropHandle::new(tokio::spawn(accept(listener, Arc::clone(&shared))));
        Ok(Link { address, shared, _accepting: accepting })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on, this share (0 to 1) of the segments that go `way` is lost.
    pub fn lose(&self, way: Way, share: f64) {
        self.shared.direction(way).loss.store(share.to_bits(), Relaxed);
    }

    /// Segments lost and sent so far, both ways together; a lost one that is sent again counts again.
    pub fn tally(&self) -> (u64, u64) {
        let Shared { there, back, .. } = &*self.shared;
        let sum = |count: fn(&Direction) -> &AtomicU64| count(there).load(Relaxed) + count(back).load(Relaxed);
        (sum(|direction| &direction.lost), sum(|direction| &direction.sent))
    }
}

impl Shared {
    fn direction(&self, way: Way) -> &Direction {
        match way {
            Way::There => &self.there,
            Way::Back => &self.back,
        }
    }

    fn is_lost(&self, way: Way) -> bool {
        let direction = self.direction(way);
        direction.sent.fetch_add(1, Relaxed);
        let share = f64::from_bits(direction.loss.load(Relaxed));
        let lost = share > 0.0 && self.draws.lock().unwrap_or_else(PoisonError::into_inner).random::<f64>() < share;
        direction.lost.fetch_add(u64::from(lost), Relaxed);
        lost
    }

    /// Waits until a segment that is sent now, and again after each time-out, has come through.
    async fn send(&self, way: Way, first: Duration) {
        let mut timeout = first;
        while self.is_lost(way) {
            sleep(timeout).await;
            timeout = LONGEST_TIMEOUT.min(timeout * 2);
        }
    }

    /// A SYN that is lost and a SYN-ACK that is lost are the same to the one who connects.
    async fn shake_hands(&self) {
        let mut timeout = self.retransmission.handshake;
        while self.is_lost(Way::There) || self.is_lost(Way::Back) {
            sleep(timeout).await;
            timeout = LONGEST_TIMEOUT.min(timeout * 2);
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            // Out of descriptors: those that end make room.
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => { connections.spawn(relay(stream, Arc::clone(&shared))); }
                Err(_) => sleep(Duration::from_millis(10)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Relays one connection until both ways have ended. An end that is none in order is passed on as a reset.
async fn relay(near: TcpStream, shared: Arc<Shared>) {
    shared.shake_hands().await;
    let turn = shared.turn.fetch_add(1, Relaxed) % shared.upstreams.len();
    let Ok(far) = TcpStream::connect(shared.upstreams[turn]).await else { return reset(&near) };
    let _ = near.set_nodelay(true).and_then(|()| far.set_nodelay(true));
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    let there = carry(near_in, far_out, Way::There, &shared);
    let back = carry(far_in, near_out, Way::Back, &shared);
    if let Err((near_out, far_out)) = ends(there, back).await {
        for half in [near_out, far_out].into_iter().flatten() {
            reset(half.as_ref());
        }
    }
}

type Broken = (Option<OwnedWriteHalf>, Option<OwnedWriteHalf>);

async fn ends(
    there: impl Future<Output = Result<OwnedWriteHalf, OwnedWriteHalf>>,
    back: impl Future<Output = Result<OwnedWriteHalf, OwnedWriteHalf>>,
) -> Result<(), Broken> {
    let there = async { there.await.map_err(|far_out| (None, Some(far_out))) };
    let back = async { back.await.map_err(|near_out| (Some(near_out), None)) };
    tokio::try_join!(there, back).map(|_| ())
}

/// Carries bytes one way until their end, which is passed on too.
async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    way: Way,
    shared: &Shared,
) -> Result<OwnedWriteHalf, OwnedWriteHalf> {
    let mut segment = [0; SEGMENT];
    loop {
        let Ok(length) = from.read(&mut segment).await else { return Err(to) };
        shared.send(way, shared.retransmission.data).await;
        let passed_on = match length {
            0 => to.shutdown().await,
            _ => to.write_all(&segment[..length]).await,
        };
        match (passed_on, length) {
            (Err(_), _) => return Err(to),
            (Ok(()), 0) => return Ok(to),
            (Ok(()), _) => {}
        }
    }
}

fn reset(stream: &TcpStream) {
    // Without it the peer sees an end in order, which is a smaller lie than none.
    let _ = stream.set_zero_linger();
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Instant, timeout};

    const FAST: Retransmission =
        Retransmission { handshake: Duration::from_millis(300), data: Duration::from_millis(60) };
    const LIMIT: Duration = Duration::from_secs(20);

    /// Answers each byte with its double, and ends when its client does.
    async fn doubler() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    while let Ok(byte) = stream.read_u8().await {
                        let _ = stream.write_u8(byte * 2).await;
                    }
                });
            }
        });
        address
    }

    async fn ask(stream: &mut TcpStream, byte: u8) -> io::Result<u8> {
        stream.write_u8(byte).await?;
        timeout(LIMIT, stream.read_u8()).await.expect("an answer in time")
    }

    #[tokio::test]
    async fn a_good_link_carries_both_ways_and_passes_the_end_on() {
        let link = Link::start(vec![doubler().await], FAST, 1).await.expect("a link");
        let mut stream = TcpStream::connect(link.address()).await.expect("connected");
        for byte in 1..100 {
            assert_eq!(ask(&mut stream, byte).await.expect("an answer"), byte * 2);
        }
        stream.shutdown().await.expect("ended");
        assert_eq!(stream.read(&mut [0]).await.expect("the end"), 0);
        assert_eq!(link.tally().0, 0);
    }

    #[tokio::test]
    async fn a_lost_segment_costs_the_retransmission_timeout_and_all_comes_through() {
        let link = Link::start(vec![doubler().await], FAST, 1).await.expect("a link");
        let mut stream = TcpStream::connect(link.address()).await.expect("connected");
        ask(&mut stream, 1).await.expect("an answer");
        for way in [Way::There, Way::Back] {
            link.lose(way, 1.0);
            let begun = Instant::now();
            stream.write_u8(3).await.expect("sent");
            sleep(FAST.data / 2).await;
            // The time-out that runs already is waited for; then all is well.
            link.lose(way, 0.0);
            assert_eq!(timeout(LIMIT, stream.read_u8()).await.expect("in time").expect("an answer"), 6);
            assert!(begun.elapsed() >= FAST.data, "{way:?}: {:?}", begun.elapsed());
        }
        assert_eq!(link.tally().0, 2);
    }

    #[tokio::test]
    async fn a_lost_handshake_costs_its_own_longer_timeout() {
        let link = Link::start(vec![doubler().await], FAST, 1).await.expect("a link");
        link.lose(Way::Back, 1.0);
        let begun = Instant::now();
        let mut stream = TcpStream::connect(link.address()).await.expect("the relay itself is there");
        sleep(FAST.handshake / 2).await;
        link.lose(Way::Back, 0.0);
        assert_eq!(ask(&mut stream, 4).await.expect("an answer"), 8);
        assert!(begun.elapsed() >= FAST.handshake, "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn connections_take_turns_over_the_replicas() {
        let (one, two) = (doubler().await, doubler().await);
        let link = Link::start(vec![one, two], FAST, 1).await.expect("a link");
        for _ in 0..4 {
            let mut stream = TcpStream::connect(link.address()).await.expect("connected");
            ask(&mut stream, 1).await.expect("an answer");
        }
        assert_eq!(link.shared.turn.load(Relaxed), 4);
    }

    #[tokio::test]
    async fn where_nobody_listens_behind_it_the_connection_is_reset() {
        let nobody = {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
            listener.local_addr().expect("an address")
        };
        let link = Link::start(vec![nobody], FAST, 1).await.expect("a link");
        let mut stream = TcpStream::connect(link.address()).await.expect("the relay itself is there");
        assert!(ask(&mut stream, 1).await.is_err());
    }
}
