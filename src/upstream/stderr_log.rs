//! What the children say on stderr, kept on disk: a ring of two files for each server.
//!
//! A line waits in a bounded queue for one thread that redacts and writes it, so that no child and no
//! call waits for a disk. What there is no room for, in the queue or on the disk, is counted, and the
//! count stands in the log where the lines would. A file is left when it is full, and the one before it
//! is removed; their numbers only grow, so that a place in them ([`LogPlace`]) is one for good.

mod removed;

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use parking_lot::Mutex;

pub use self::removed::{KEPT_AFTER, forget};
use crate::activity::redact::Redactor;
use crate::os::{priority, private};
use crate::secrets::Secrets;
use crate::tool::server_id;

/// Most bytes of one file; there are two for a server.
pub const FILE_BYTES: u64 = 1024 * 1024;
/// Most files that are open at once; of more servers those that said something last keep theirs.
const MAX_OPEN_FILES: usize = 64;
/// Files that are kept for a server.
const FILES: usize = 2;
/// Lines of all servers that wait to be written.
const QUEUE_LINES: usize = 1024;
/// Most bytes of a line, with its time.
const LINE_BYTES: usize = 16 * 1024;
/// A disk that refused a line is not tried again for this long.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Longest wait for the last lines when the proxy ends.
const FINISH_WAIT: Duration = Duration::from_secs(2);
/// Most lines that are read at once.
pub const MAX_LINES: usize = 1000;
const EXTENSION: &str = "log";

/// The thread that writes, and the way to it.
#[derive(Debug, Default)]
pub struct StderrLog {
    folder: PathBuf,
    queue: Option<SyncSender<Entry>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The way of one server's lines to it. The default one keeps nothing.
#[derive(Debug, Default)]
pub(super) struct ServerLines {
    queue: Option<SyncSender<Entry>>,
    server: Arc<str>,
    /// Lines for which there was no room, since the last one for which there was.
    lost: AtomicU64,
}

/// A line on its way.
#[derive(Debug)]
struct Entry {
    server: Arc<str>,
    secrets: Arc<Secrets>,
    at: SystemTime,
    words: Box<[u8]>,
    /// It was longer.
    cut: bool,
    /// Lines that were lost before it.
    lost: u64,
}

impl StderrLog {
    /// Starts to write into `folder`, which is made with the first line. Without a thread nothing is
    /// kept.
    #[must_use]
    pub fn start(folder: PathBuf, redactor: Redactor) -> Self {
        let (queue, lines) = sync_channel(QUEUE_LINES);
        let writer = Rings::new(folder.clone(), redactor);
        let thread = std::thread::Builder::new().name("stderr".into()).spawn(move || {
            priority::lower();
            writer.run(&lines);
        });
        match thread {
            Ok(thread) => Self { folder, queue: Some(queue), thread: Mutex::new(Some(thread)) },
            Err(error) => {
                tracing::warn!(%error, "what servers say on stderr is not kept");
                Self { folder, ..Self::default() }
            }
        }
    }

    /// Where the files are.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The way for the lines of a server.
    pub(super) fn of(&self, server: &Arc<str>) -> ServerLines {
        let (queue, server) = (self.queue.clone(), Arc::clone(server));
        ServerLines { queue, server, lost: AtomicU64::new(0) }
    }

    /// Waits until what is in the queue is written, a little. Those who add to it have ended.
    pub(super) async fn finish(&self) {
        let Some(thread) = self.thread.lock().take() else { return };
        let start = Instant::now();
        let mut is_told = false;
        while !thread.is_finished() && start.elapsed() < FINISH_WAIT {
            let queue = self.queue.as_ref().filter(|_| !is_told);
            is_told |= queue.is_some_and(|queue| queue.try_send(Entry::end()).is_ok());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}

impl ServerLines {
    /// Keeps a line, or counts it. Never waits.
    pub(super) fn keep(&self, secrets: &Arc<Secrets>, words: &[u8], cut: bool) {
        let Some(queue) = &self.queue else { return };
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let entry = Entry {
            server: Arc::clone(&self.server),
            secrets: Arc::clone(secrets),
            at: SystemTime::now(),
            words: words.into(),
            cut,
            lost,
        };
        if queue.try_send(entry).is_err() {
            self.lost.fetch_add(lost + 1, Ordering::Relaxed);
        }
    }
}

impl Entry {
    /// The last one of all.
    fn end() -> Self {
        let (server, words) = (Arc::from(""), Box::from([]));
        Self {
            server,
            secrets: Arc::default(),
            at: SystemTime::UNIX_EPOCH,
            words,
            cut: false,
            lost: 0,
        }
    }
}

/// The files that are written.
struct Rings {
    folder: PathBuf,
    redactor: Redactor,
    all: HashMap<Arc<str>, Ring>,
    /// How many of them have a file open.
    open: usize,
    /// Lines that were written so far.
    written: u64,
}

/// The files of one server.
#[derive(Default)]
struct Ring {
    number: u64,
    file: Option<File>,
    size: u64,
    lost: u64,
    /// Which line of all it was given last.
    used: u64,
    refused: Option<Instant>,
    /// The last line may have been written in part.
    is_torn: bool,
}

impl Rings {
    fn new(folder: PathBuf, redactor: Redactor) -> Self {
        Self { folder, redactor, all: HashMap::new(), open: 0, written: 0 }
    }

    fn run(mut self, lines: &Receiver<Entry>) {
        for entry in lines {
            if entry.server.is_empty() {
                return;
            }
            self.keep(&entry);
        }
    }

    /// Writes a line, or counts it.
    fn keep(&mut self, entry: &Entry) {
        let line = self.line(entry);
        self.written += 1;
        let ring = self.all.entry(Arc::clone(&entry.server)).or_default();
        ring.lost += entry.lost;
        ring.used = self.written;
        let was_open = ring.file.is_some();
        ring.put(&self.folder, &entry.server, entry.at, &line);
        self.open += usize::from(ring.file.is_some());
        self.open -= usize::from(was_open);
        if self.open > MAX_OPEN_FILES {
            self.close_one();
        }
    }

    /// Closes the file of the server that has been silent for longest; its next line opens it again.
    fn close_one(&mut self) {
        let open = self.all.values_mut().filter(|ring| ring.file.is_some());
        if let Some(ring) = open.min_by_key(|ring| ring.used) {
            ring.file = None;
            self.open -= 1;
        }
    }

    /// What is kept of a line: without secrets, and without what would steer a terminal.
    fn line(&self, entry: &Entry) -> String {
        let masked = entry.secrets.mask(&entry.words, entry.cut);
        let visible = |letter: &char| !letter.is_control() || *letter == '\t';
        let line: String = String::from_utf8_lossy(&masked).chars().filter(visible).collect();
        // What was left out may have stood inside of a secret.
        let masked = entry.secrets.mask(line.as_bytes(), entry.cut);
        let line = String::from_utf8_lossy(&masked);
        let mut line = self.redactor.text(line.trim_end(), entry.cut).into_owned();
        if line.len() > LINE_BYTES {
            let end = (0..=LINE_BYTES).rev().find(|end| line.is_char_boundary(*end));
            line.truncate(end.unwrap_or_default());
        }
        line
    }
}

impl Ring {
    /// Writes a line, or counts it.
    fn put(&mut self, folder: &Path, server: &str, at: SystemTime, line: &str) {
        if self.refused.is_some_and(|refused| refused.elapsed() < RETRY_AFTER) {
            self.lost += 1;
            return;
        }
        let written = self.write(folder, server, at, line);
        self.refused = written.is_err().then(Instant::now);
        if let Err(error) = written {
            (self.file, self.is_torn) = (None, true);
            self.lost += 1;
            tracing::debug!(server, %error, "a line of a server's stderr is not kept");
        }
    }

    fn write(&mut self, folder: &Path, server: &str, at: SystemTime, line: &str) -> io::Result<()> {
        if self.file.is_some() && self.size >= FILE_BYTES {
            self.file = None;
            self.number += 1;
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                private::folder(folder)?;
                let there = numbers(folder, server)?;
                let newest = there.last().copied().unwrap_or_default();
                self.number = self.number.max(newest);
                let path = path(folder, server, self.number);
                // A dead writer's last line may have no end.
                let mut file = private::options().append(true).create(true).open(&path)?;
                self.size = file.metadata()?.len();
                if self.size >= FILE_BYTES {
                    self.number += 1;
                    let path = self::path(folder, server, self.number);
                    file = private::options().append(true).create(true).open(path)?;
                    self.size = 0;
                }
                let kept = self.number.saturating_sub(FILES as u64 - 1);
                for old in there.into_iter().filter(|number| *number < kept) {
                    fs::remove_file(self::path(folder, server, old))?;
                }
                self.is_torn |= self.size > 0;
                none.insert(file)
            }
        };
        let at = Timestamp::try_from(at).unwrap_or(Timestamp::UNIX_EPOCH);
        let mut text = String::new();
        if self.is_torn {
            text.push('\n');
        }
        if self.lost > 0 {
            text.push_str(&format!("{at:.3} ({} lines were lost)\n", self.lost));
        }
        text.push_str(&format!("{at:.3} {line}\n"));
        file.write_all(text.as_bytes())?;
        self.size += text.len() as u64;
        (self.lost, self.is_torn) = (0, false);
        Ok(())
    }
}

/// A place between two lines of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPlace {
    file: u64,
    offset: u64,
}

impl fmt::Display for LogPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.file, self.offset)
    }
}

/// A text is no [`LogPlace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a place that an earlier answer gave")]
pub struct NoLogPlace;

impl FromStr for LogPlace {
    type Err = NoLogPlace;

    fn from_str(text: &str) -> Result<Self, NoLogPlace> {
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| digits).ok_or(NoLogPlace)
        };
        let (file, offset) = text.split_once('-').ok_or(NoLogPlace)?;
        Ok(Self { file: number(file)?, offset: number(offset)? })
    }
}

/// A line that was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptLine {
    /// When it was said, in RFC 3339.
    pub time: String,
    /// What was said, without secrets.
    pub line: String,
}

/// Lines that were kept, in the order in which they were said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptLines {
    /// They.
    pub lines: Vec<KeptLine>,
    /// Where the next ones stand.
    pub next: LogPlace,
}

/// Reads what was kept of a server in `folder`: of what came after `after` the first lines, else the
/// last ones; at most `most` of them.
///
/// # Errors
/// The file system's. That nothing was kept is none.
pub fn read(
    folder: &Path,
    server: &str,
    after: Option<LogPlace>,
    most: usize,
) -> io::Result<KeptLines> {
    let mut kept = KeptLines { lines: Vec::new(), next: after.unwrap_or_default() };
    let from = after.unwrap_or_default();
    let there = match numbers(folder, server) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        there => there?,
    };
    let mut places = Vec::new();
    for number in there.into_iter().filter(|number| *number >= from.file) {
        let mut offset = if number == from.file { from.offset } else { 0 };
        let text = match part(&path(folder, server, number), offset) {
            // It was removed meanwhile: there are newer ones.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            text => text?,
        };
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            // The last one may be half-written.
            let Some(whole) = line.strip_suffix(b"\n") else { break };
            offset += line.len() as u64;
            let whole = String::from_utf8_lossy(whole);
            let split = whole.split_once(' ');
            let timed = split.filter(|(time, _)| time.parse::<Timestamp>().is_ok());
            if let Some((time, line)) = timed {
                let (time, line) = (time.to_owned(), line.to_owned());
                kept.lines.push(KeptLine { time, line });
                places.push(LogPlace { file: number, offset });
            }
        }
        kept.next = LogPlace { file: number, offset };
    }
    if kept.lines.len() > most {
        match after {
            None => {
                kept.lines.drain(..kept.lines.len() - most);
            }
            Some(_) => {
                kept.lines.truncate(most);
                let last = most.checked_sub(1).and_then(|last| places.get(last));
                kept.next = last.copied().unwrap_or(from);
            }
        }
    }
    Ok(kept)
}

/// The numbers of a server's files, in order.
fn numbers(folder: &Path, server: &str) -> io::Result<Vec<u64>> {
    let stem = server_id::file_stem(server);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        let number = name.strip_prefix(&*stem).and_then(|rest| rest.strip_prefix('.'));
        let number = number.and_then(|rest| rest.strip_suffix(EXTENSION)?.strip_suffix('.'));
        found.extend(number.and_then(|number| number.parse::<u64>().ok()));
    }
    found.sort_unstable();
    Ok(found)
}

fn path(folder: &Path, server: &str, number: u64) -> PathBuf {
    folder.join(format!("{}.{number}.{EXTENSION}", server_id::file_stem(server)))
}

/// A file from `offset` on, as far as one of ours can be long.
fn part(path: &Path, offset: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES + 2 * LINE_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn rings(folder: &Path) -> Rings {
        Rings::new(folder.to_owned(), Redactor::default())
    }

    fn put(ring: &mut Ring, folder: &Path, line: &str) {
        ring.put(folder, "s", SystemTime::UNIX_EPOCH, line);
    }

    fn lines(folder: &Path, after: Option<LogPlace>, most: usize) -> (Vec<String>, LogPlace) {
        let kept = read(folder, "s", after, most).unwrap();
        (kept.lines.into_iter().map(|line| line.line).collect(), kept.next)
    }

    #[test]
    fn two_files_are_kept_for_the_owner_alone_and_their_size_is_bounded() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("stderr");
        let mut ring = Ring::default();
        let long = "x".repeat(64 * 1024);
        for number in 0..100 {
            put(&mut ring, &folder, &format!("{number} {long}"));
        }
        let numbers = numbers(&folder, "s").unwrap();
        assert_eq!(numbers.len(), FILES);
        for number in numbers {
            let metadata = fs::metadata(path(&folder, "s", number)).unwrap();
            assert!(metadata.len() < FILE_BYTES + 70 * 1024, "{}", metadata.len());
            assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        }
        let (last, _) = lines(&folder, None, 1);
        assert!(last[0].starts_with("99 "));
        // Another life goes on where this one ended.
        let mut ring = Ring::default();
        put(&mut ring, &folder, "again");
        assert_eq!(lines(&folder, None, 1).0, ["again"]);
    }

    #[test]
    fn a_reader_goes_on_where_it_was_and_half_a_line_is_none() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path();
        assert_eq!(lines(&folder.join("none"), None, 10), (vec![], LogPlace::default()));
        let mut ring = Ring::default();
        ["a", "b", "c"].iter().for_each(|line| put(&mut ring, folder, line));
        let (last, end) = lines(folder, None, 2);
        assert_eq!(last, ["b", "c"]);
        assert_eq!(lines(folder, Some(end), 10), (vec![], end));
        assert_eq!(end.to_string().parse(), Ok(end));
        let (first, next) = lines(folder, Some(LogPlace::default()), 2);
        assert_eq!(
            (first.as_slice(), lines(folder, Some(next), 2).0.as_slice()),
            (&["a".to_owned(), "b".into()][..], &["c".to_owned()][..])
        );
        let mut file = private::options().append(true).open(path(folder, "s", 0)).unwrap();
        file.write_all(b"1970-01-01T00:00:00.000Z half").unwrap();
        assert_eq!(lines(folder, Some(end), 10).0, [""; 0]);
        let mut ring = Ring::default();
        put(&mut ring, folder, "d");
        assert_eq!(lines(folder, Some(end), 10).0, ["half", "d"]);
        for bad in ["", "1", "-1", "1-", "+1-2", "a-b"] {
            assert!(bad.parse::<LogPlace>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_the_disk_does_not_take_is_counted_where_it_would_stand() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("stderr");
        fs::write(&folder, "a file is in the way").unwrap();
        let mut ring = Ring::default();
        ["a", "b", "c"].iter().for_each(|line| put(&mut ring, &folder, line));
        assert_eq!(ring.lost, 3);
        fs::remove_file(&folder).unwrap();
        ring.refused = None;
        put(&mut ring, &folder, "d");
        assert_eq!(lines(&folder, None, 10).0, ["(3 lines were lost)", "d"]);
    }

    #[test]
    fn of_many_servers_those_that_spoke_last_have_their_files_open() {
        let home = tempfile::tempdir().unwrap();
        let mut rings = rings(home.path());
        let mut say = |server: &str, words: &str| {
            let words = words.as_bytes().into();
            rings.keep(&Entry { server: server.into(), words, ..Entry::end() });
            let open = rings.all.iter().filter(|(_, ring)| ring.file.is_some());
            let open: Vec<_> = open.map(|(name, _)| name.to_string()).collect();
            assert!(open.len() == rings.open && open.len() <= MAX_OPEN_FILES, "{}", open.len());
            open
        };
        say("s", "first");
        for number in 0..MAX_OPEN_FILES {
            say(&format!("other-{number}"), "x");
        }
        let open = say("other-0", "x");
        assert!(!open.contains(&"s".to_owned()), "it has been silent for longest");
        let open = say("s", "again");
        assert!(open.contains(&"s".to_owned()) && !open.contains(&"other-1".to_owned()));
        assert_eq!(lines(home.path(), None, 10).0, ["first", "again"]);
    }

    #[test]
    fn no_secret_and_no_control_character_is_kept() {
        let secrets = Arc::new(Secrets::new(["s3cr3t-token".to_owned()]));
        let entry = |words: &[u8], cut| Entry {
            words: words.into(),
            secrets: secrets.clone(),
            cut,
            ..Entry::end()
        };
        let rings = rings(Path::new(""));
        for (words, cut, expected) in [
            (&b"a s3cr3t-token\tb\x1b[31m"[..], false, "a [redacted]\tb[31m"),
            (b"a s3cr\x003t-token", false, "a [redacted]"),
            (b"end s3cr3t-t", true, "end [redacted]"),
        ] {
            assert_eq!(rings.line(&entry(words, cut)), expected);
        }
        let key = concat!("ghp_", "0123456789abcdefghijABCDEFGHIJ012345");
        let line = rings.line(&entry(format!("token is {key}").as_bytes(), false));
        assert!(!line.contains(key), "the shape of a credential is enough: {line}");
    }

    #[tokio::test]
    async fn nobody_waits_for_the_disk_and_the_end_writes_what_waits() {
        let home = tempfile::tempdir().unwrap();
        let log = StderrLog::start(home.path().to_owned(), Redactor::default());
        let server = log.of(&"s".into());
        for number in 0..10 * QUEUE_LINES {
            server.keep(&Arc::default(), number.to_string().as_bytes(), false);
        }
        log.finish().await;
        let (told, _) = lines(home.path(), None, 20 * QUEUE_LINES);
        let lost = |line: &String| -> u64 {
            let words = line.strip_prefix('(').and_then(|rest| rest.split_once(' '));
            words.map_or(0, |(count, _)| count.parse().unwrap())
        };
        let counted: u64 = told.iter().map(lost).sum();
        let written = told.iter().filter(|line| lost(line) == 0).count() as u64;
        let waiting = server.lost.load(Ordering::Relaxed);
        assert_eq!(written + counted + waiting, 10 * QUEUE_LINES as u64, "none is forgotten");
    }
}
