//! A client that sees every byte: one socket, requests as they are written, answers as they come.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};

use serde_json::Value;

use super::PATIENCE;

/// A connection to a node.
pub(crate) struct Socket(BufReader<TcpStream>);

/// One answer, framing undone.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status_line: String,
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Socket {
    pub(crate) fn connect(address: impl ToSocketAddrs) -> Socket {
        Socket::try_connect(address).expect("the node takes connections")
    }

    pub(crate) fn try_connect(address: impl ToSocketAddrs) -> io::Result<Socket> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Socket(BufReader::new(stream)))
    }

    pub(crate) fn send(&mut self, raw: impl AsRef<[u8]>) {
        self.try_send(raw).expect("the node reads");
    }

    pub(crate) fn try_send(&mut self, raw: impl AsRef<[u8]>) -> io::Result<()> {
        self.0.get_mut().write_all(raw.as_ref())
    }

    /// A request that leaves the connection open.
    pub(crate) fn get(&mut self, path: &str) -> Answer {
        self.request("GET", path, &[])
    }

    pub(crate) fn request(&mut self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        self.send(format!("{method} {path} HTTP/1.1\r\nhost: node\r\n{lines}\r\n"));
        if method == "HEAD" { self.head() } else { self.answer() }
    }

    pub(crate) fn answer(&mut self) -> Answer {
        self.try_answer().expect("an answer")
    }

    /// Only the head of an answer, as to a HEAD request.
    pub(crate) fn head(&mut self) -> Answer {
        self.read_head().expect("the head of an answer")
    }

    pub(crate) fn try_answer(&mut self) -> io::Result<Answer> {
        let mut answer = self.read_head()?;
        let length = answer.header("content-length").map(|length| length.parse::<usize>().expect("a length"));
        match length {
            _ if answer.header("transfer-encoding").is_some() => self.read_chunks(&mut answer.body)?,
            Some(length) => {
                answer.body.resize(length, 0);
                self.0.read_exact(&mut answer.body)?;
            }
            None => drop(self.0.read_to_end(&mut answer.body)?),
        }
        Ok(answer)
    }

    fn read_head(&mut self) -> io::Result<Answer> {
        let status_line = self.read_line()?;
        let status = status_line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("not a status line: {status_line:?}")))?;
        let mut headers = Vec::new();
        loop {
            let line = self.read_line()?;
            if line.is_empty() {
                return Ok(Answer { status_line, status, headers, body: Vec::new() });
            }
            let (name, value) =
                line.split_once(": ").ok_or_else(|| io::Error::other(format!("no header: {line:?}")))?;
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
    }

    fn read_chunks(&mut self, body: &mut Vec<u8>) -> io::Result<()> {
        loop {
            let length = usize::from_str_radix(&self.read_line()?, 16).expect("a chunk's length");
            let start = body.len();
            body.resize(start + length, 0);
            self.0.read_exact(&mut body[start..])?;
            assert_eq!(self.read_line()?, "", "a chunk ends its line");
            if length == 0 {
                return Ok(());
            }
        }
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.strip_suffix("\r\n").map(str::to_owned).ok_or_else(|| io::Error::other(format!("half a line: {line:?}")))
    }

    /// Whether nothing has come so far.
    pub(crate) fn is_silent(&mut self) -> bool {
        let stream = self.0.get_ref();
        stream.set_nonblocking(true).expect("an open socket");
        let peeked = stream.peek(&mut [0]);
        stream.set_nonblocking(false).expect("an open socket");
        matches!(peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Waits until the node closes the connection; what came before that.
    pub(crate) fn until_closed(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => rest,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => rest,
            Err(error) => panic!("the connection is still open: {error}"),
        }
    }
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("UTF-8")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.text()))
    }

    /// The word before the colon in `msg`; empty when `msg` is null.
    pub(crate) fn reason(&self) -> String {
        let msg = self.json()["msg"].as_str().unwrap_or_default().to_owned();
        msg.split(':').next().unwrap_or_default().to_owned()
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.status == 200 && self.header("cascade-status") == Some("complete")
    }

    /// The nodes' names from this one down, as the nested bodies have them.
    pub(crate) fn hosts(&self) -> Vec<String> {
        let mut hosts = Vec::new();
        let mut level = self.json();
        while let Some(host) = level["host"].as_str() {
            hosts.push(host.to_owned());
            level = level["responseInfo"].take();
        }
        hosts
    }
}
