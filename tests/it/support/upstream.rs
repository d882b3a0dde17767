//! A target that does as a script says, and keeps count of who came.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::PATIENCE;

/// A listener with a script for each connection; its counts are what the kernel and the wire say, not what a node says.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    seen: Arc<Seen>,
    accepting: Option<thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    counts: Mutex<Counts>,
    changed: Condvar,
    stopping: AtomicBool,
}

#[derive(Default)]
struct Counts {
    connections: usize,
    open: usize,
    most_open: usize,
    requests: Vec<Request>,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Which connection it came on, from 1.
    pub(crate) connection: usize,
    /// Which of this connection's requests it is, from 1.
    pub(crate) number: usize,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) headers: Vec<(String, String)>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// The other end of one connection.
pub(crate) struct Peer {
    stream: Box<dyn Stream>,
    tcp: TcpStream,
    open: bool,
}

impl Peer {
    /// Sends bytes as they are. A peer that has gone meanwhile is the test's to notice.
    pub(crate) fn send(&mut self, raw: impl AsRef<[u8]>) {
        let sent = self.stream.write_all(raw.as_ref()).and_then(|()| self.stream.flush());
        self.open &= sent.is_ok();
    }

    /// A good answer with this body.
    pub(crate) fn json(&mut self, body: &str) {
        self.send(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ));
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Ends the connection as a well-behaved peer does.
    pub(crate) fn close(&mut self) {
        let _ = self.tcp.shutdown(std::net::Shutdown::Both);
        self.open = false;
    }

    /// Ends it with a TCP reset.
    pub(crate) fn reset(&mut self) {
        SockRef::from(&self.tcp).set_linger(Some(std::time::Duration::ZERO)).expect("an open socket");
        self.open = false;
    }

    /// Says nothing until the other side goes away.
    pub(crate) fn until_gone(&mut self) {
        while self.stream.read(&mut [0; 1024]).is_ok_and(|read| read > 0) {}
        self.open = false;
    }

    /// The next request's head; `None` when the other side goes away first.
    fn head(&mut self) -> Option<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).ok()?;
            head.push(byte[0]);
        }
        Some(String::from_utf8_lossy(&head).into_owned())
    }
}

impl Upstream {
    /// Answers every request with `{"leaf":true}`.
    pub(crate) fn leaf() -> Upstream {
        Upstream::answering(|peer, _| peer.json("{\"leaf\":true}"))
    }

    /// Runs `script` for each request; the connection stays open unless the script ends it.
    pub(crate) fn answering(script: impl Fn(&mut Peer, &Request) + Send + Sync + 'static) -> Upstream {
        Upstream::answering_at(Ipv4Addr::LOCALHOST.into(), 0, script)
    }

    pub(crate) fn answering_at(
        ip: IpAddr,
        port: u16,
        script: impl Fn(&mut Peer, &Request) + Send + Sync + 'static,
    ) -> Upstream {
        let listener = TcpListener::bind((ip, port)).expect("an address to listen on");
        Upstream::start(listener, None, move |peer, seen, connection| serve(peer, seen, connection, &script))
    }

    /// As [`Upstream::answering`], with TLS.
    pub(crate) fn secure(
        config: rustls::ServerConfig,
        script: impl Fn(&mut Peer, &Request) + Send + Sync + 'static,
    ) -> Upstream {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let run = move |peer: &mut Peer, seen: &Seen, connection| serve(peer, seen, connection, &script);
        Upstream::start(listener, Some(Arc::new(config)), run)
    }

    /// Runs `script` for each connection, before anything is read.
    pub(crate) fn accepting(script: impl Fn(&mut Peer) + Send + Sync + 'static) -> Upstream {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        Upstream::start(listener, None, move |peer, _, _| script(peer))
    }

    fn start(
        listener: TcpListener,
        tls: Option<Arc<rustls::ServerConfig>>,
        run: impl Fn(&mut Peer, &Seen, usize) + Send + Sync + 'static,
    ) -> Upstream {
        let address = listener.local_addr().expect("bound");
        let seen = Arc::new(Seen::default());
        let (shared, run) = (Arc::clone(&seen), Arc::new(run));
        let accepting = thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.stopping.load(SeqCst) {
                    return;
                }
                let (shared, run, tls) = (Arc::clone(&shared), Arc::clone(&run), tls.clone());
                let connection = shared.opened();
                thread::spawn(move || {
                    if let Ok(mut peer) = stream.and_then(|stream| Peer::new(stream, tls)) {
                        run(&mut peer, &shared, connection);
                    }
                    shared.closed();
                });
            }
        });
        Upstream { address, seen, accepting: Some(accepting) }
    }

    pub(crate) fn uri(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.seen.counts().connections
    }

    /// The most connections that were open at one time.
    pub(crate) fn most_open(&self) -> usize {
        self.seen.counts().most_open
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.seen.counts().requests.clone()
    }

    /// Waits for the request with this number, from 1.
    #[track_caller]
    pub(crate) fn until_request(&self, number: usize) -> Request {
        let counts = self.seen.wait(|counts| counts.requests.len() >= number);
        let got = counts.requests.len();
        counts.requests.get(number - 1).cloned().unwrap_or_else(|| panic!("request {number} never came, only {got}"))
    }

    /// Waits until no connection is open.
    #[track_caller]
    pub(crate) fn until_nobody_is_there(&self) {
        let counts = self.seen.wait(|counts| counts.open == 0);
        assert_eq!(counts.open, 0, "connections that never closed");
    }

    /// From now on connections are refused.
    pub(crate) fn stop(&mut self) {
        let Some(accepting) = self.accepting.take() else { return };
        self.seen.stopping.store(true, SeqCst);
        // Wakes it up; fails only if it has ended.
        let _ = TcpStream::connect(self.address);
        accepting.join().expect("the accepting thread does not panic");
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stop();
    }
}

fn serve(peer: &mut Peer, seen: &Seen, connection: usize, script: &impl Fn(&mut Peer, &Request)) {
    let mut number = 0;
    while peer.open {
        let Some(head) = peer.head() else { return };
        number += 1;
        let mut lines = head.lines();
        let target = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
        let headers = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let request = Request { connection, number, target, headers };
        seen.counts().requests.push(request.clone());
        seen.changed.notify_all();
        script(peer, &request);
    }
}

impl Peer {
    fn new(tcp: TcpStream, tls: Option<Arc<rustls::ServerConfig>>) -> io::Result<Peer> {
        tcp.set_nodelay(true)?;
        let stream = tcp.try_clone()?;
        let stream: Box<dyn Stream> = match tls {
            None => Box::new(stream),
            Some(config) => {
                let session = rustls::ServerConnection::new(config).map_err(io::Error::other)?;
                Box::new(rustls::StreamOwned::new(session, stream))
            }
        };
        Ok(Peer { stream, tcp, open: true })
    }
}

impl Seen {
    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.counts.lock().expect("no panic under it")
    }

    fn wait(&self, done: impl Fn(&Counts) -> bool) -> std::sync::MutexGuard<'_, Counts> {
        let waited = self.changed.wait_timeout_while(self.counts(), PATIENCE, |counts| !done(counts));
        waited.expect("no panic under it").0
    }

    fn opened(&self) -> usize {
        let mut counts = self.counts();
        counts.connections += 1;
        counts.open += 1;
        counts.most_open = counts.most_open.max(counts.open);
        counts.connections
    }

    fn closed(&self) {
        self.counts().open -= 1;
        self.changed.notify_all();
    }
}

/// An address that takes no connection and refuses none: a listener whose queue is full, so that the kernel drops
/// every further SYN.
pub(crate) struct BlackHole {
    pub(crate) address: SocketAddr,
    _listener: Socket,
    _waiting: Vec<Socket>,
}

impl BlackHole {
    pub(crate) fn new() -> BlackHole {
        let socket = || Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let listener = socket();
        listener.bind(&SockAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).expect("a free port");
        listener.listen(0).expect("bound");
        let address = listener.local_addr().expect("bound");
        let waiting = (0..4)
            .map(|_| {
                let client = socket();
                client.set_nonblocking(true).expect("a socket");
                // In progress for ever: that is what is wanted.
                let _ = client.connect(&address);
                client
            })
            .collect();
        BlackHole { address: address.as_socket().expect("an IPv4 address"), _listener: listener, _waiting: waiting }
    }

    pub(crate) fn uri(&self) -> String {
        format!("http://{}", self.address)
    }
}
