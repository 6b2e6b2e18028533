//! Lines of the log on their way to where they are read: a bounded queue and a thread that writes.
//!
//! Logging neither waits for the reader of stderr nor fails with it. A line for which the queue has no
//! room, or that cannot be written, is lost and counted.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Most bytes of lines that wait to be written.
const QUEUE_BYTES: usize = 128 * 1024;

/// The queue. Clones share it; the default one has no reader, so that every line is lost.
#[derive(Clone, Debug, Default)]
pub struct LogLines(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// A line has come.
    come: Condvar,
    /// Everything was written.
    written: Condvar,
    lost: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<Box<[u8]>>,
    bytes: usize,
    /// Whether there is a thread that writes, and whether it is at it.
    taken: bool,
    writing: bool,
}

impl LogLines {
    /// Writes to `out`, by a thread that lives as long as the process: it may wait for the reader
    /// for ever.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn to(out: impl Write + Send + 'static) -> io::Result<Self> {
        let lines = Self::default();
        lines.0.queue.lock().taken = true;
        let shared = Arc::clone(&lines.0);
        thread::Builder::new().name("log".into()).spawn(move || shared.write_to(out))?;
        Ok(lines)
    }

    /// How many lines were lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }

    /// Waits until everything is written, at most for `limit`: nobody may be reading.
    pub fn finish(&self, limit: Duration) {
        let busy = |queue: &mut Queue| queue.taken && (queue.writing || !queue.lines.is_empty());
        self.0.written.wait_while_for(&mut self.0.queue.lock(), busy, limit);
    }
}

/// One write is one line, or several whole ones.
impl Write for LogLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut queue = self.0.queue.lock();
        if !queue.taken || queue.bytes + line.len() > QUEUE_BYTES {
            self.0.lost.fetch_add(1, Ordering::Relaxed);
        } else {
            queue.bytes += line.len();
            queue.lines.push_back(line.into());
            self.0.come.notify_one();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn write_to(&self, mut out: impl Write) {
        let mut told = 0;
        loop {
            let mut queue = self.queue.lock();
            queue.writing = false;
            if queue.lines.is_empty() {
                self.written.notify_all();
            }
            self.come.wait_while(&mut queue, |queue| queue.lines.is_empty());
            let lines = std::mem::take(&mut queue.lines);
            (queue.bytes, queue.writing) = (0, true);
            drop(queue);
            let mut failed = 0;
            for line in lines {
                failed += u64::from(out.write_all(&line).is_err());
            }
            let lost = self.lost.fetch_add(failed, Ordering::Relaxed) + failed;
            // Where writing fails, nobody would read it.
            if failed == 0 && lost > told {
                tracing::warn!(
                    lines = lost - told,
                    "log lines were lost: stderr is not read in time"
                );
            }
            told = lost;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Takes a line only when it is let.
    struct Slow(mpsc::Receiver<()>, Arc<Mutex<Vec<u8>>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.recv().map_err(io::Error::other)?;
            self.1.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_does_not_read_holds_nobody_up_and_what_is_lost_is_counted() {
        let (go, wait) = mpsc::channel();
        let read = Arc::new(Mutex::new(Vec::new()));
        let mut lines = LogLines::to(Slow(wait, Arc::clone(&read))).unwrap();
        let line = [b'x'; 1024];
        let most = QUEUE_BYTES / line.len();
        // The thread may hold as many as fit into the queue.
        for _ in 0..3 * most {
            lines.write_all(&line).unwrap();
        }
        let lost = lines.lost();
        assert!(lost >= most as u64, "{lost}");
        lines.finish(Duration::ZERO);
        let kept = 3 * most as u64 - lost;
        for _ in 0..kept {
            go.send(()).unwrap();
        }
        lines.finish(Duration::from_secs(30));
        assert_eq!(read.lock().len() as u64, kept * line.len() as u64);
        assert_eq!(lines.lost(), lost);
        // Closed, it takes nothing more, and nobody sees it but by the count.
        drop(go);
        lines.write_all(b"gone\n").unwrap();
        lines.finish(Duration::from_secs(30));
        assert_eq!(lines.lost(), lost + 1);
    }

    #[test]
    fn lines_come_whole_and_in_order() {
        let (go, wait) = mpsc::channel();
        let read = Arc::new(Mutex::new(Vec::new()));
        let mut lines = LogLines::to(Slow(wait, Arc::clone(&read))).unwrap();
        let all: Vec<String> = (0..100).map(|line| format!("{line}\n")).collect();
        for line in &all {
            go.send(()).unwrap();
            lines.write_all(line.as_bytes()).unwrap();
        }
        lines.finish(Duration::from_secs(30));
        assert_eq!(*read.lock(), all.concat().into_bytes());
        assert_eq!(lines.lost(), 0);
    }
}
