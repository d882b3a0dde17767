//! The lines that a child writes, one after the other, each of limited length.

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};

/// A longer line comes in pieces of this many bytes.
const LONGEST: usize = 8 * 1024;

#[derive(Debug)]
pub(super) struct Lines<R> {
    reader: BufReader<R>,
    partial: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(reader: R) -> Lines<R> {
        Lines { reader: BufReader::new(reader), partial: Vec::new() }
    }

    /// The next line; `None` when the child has closed its end. May be called again where it was not waited for.
    pub(super) async fn next(&mut self) -> Option<String> {
        let left = LONGEST - self.partial.len();
        // A read that fails ends the lines, as the end itself does.
        let _ = (&mut self.reader).take(left as u64).read_until(b'\n', &mut self.partial).await;
        if self.partial.is_empty() {
            return None;
        }
        let line = plain(&self.partial);
        self.partial.clear();
        Some(line)
    }
}

/// As text that does nothing to a terminal.
fn plain(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let harmless = |c: char| if c.is_control() && c != '\t' { char::REPLACEMENT_CHARACTER } else { c };
    text.trim_end_matches(['\n', '\r']).chars().map(harmless).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(bytes: &[u8]) -> Vec<String> {
        let mut lines = Lines::new(bytes);
        let mut all = Vec::new();
        while let Some(line) = lines.next().await {
            all.push(line);
        }
        all
    }

    #[tokio::test]
    async fn lines_come_one_by_one_the_last_one_without_its_end_too() {
        assert_eq!(all(b"one\r\n\ntwo\tx\nthree").await, ["one", "", "two\tx", "three"]);
        assert!(all(b"").await.is_empty());
    }

    #[tokio::test]
    async fn a_line_without_end_comes_in_pieces() {
        let pieces = all(&[b'x'; LONGEST * 2 + 1]).await;
        assert_eq!(pieces.iter().map(String::len).collect::<Vec<_>>(), [LONGEST, LONGEST, 1]);
    }

    #[tokio::test]
    async fn what_would_move_a_terminals_cursor_is_replaced() {
        assert_eq!(all(b"\x1b[2Jred\xff\n").await, ["\u{fffd}[2Jred\u{fffd}"]);
    }
}
