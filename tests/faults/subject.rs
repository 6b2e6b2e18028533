//! The process under test: prepares a log, lets faults begin, does one phase, lets them end, and
//! says what came of it.
//!
//! ```text
//! acknowledged N     every record up to N was said to be durable
//! count N            so many operations of the kind were done in the phase
//! said TEXT          what the caller was told of the fault
//! salvaged TEXT      what salvage did, `kept: N` in it
//! lost N             so many records could not be written, by the log's own count
//! back | not back    whether the log can be written afterwards, in the same process
//! ```

use std::path::Path;
use std::time::{Duration, Instant};

use mcpproxy::activity::{
    Activity, Config, Draft, Filter, OnFailure, Page, Raw, Source, Status, StoreError, Text, Type,
    Writer, lost, salvage,
};

use crate::plan::{Op, Plan};

/// How long the log has, once nothing fails any more, to be written again: it tries every second. One
/// that failed to sync is not written again before the next start, and takes all of this time.
const BACK_WITHIN: Duration = Duration::from_secs(5);
/// How long it may take until a disk that does not answer is told.
const TOLD_WITHIN: Duration = Duration::from_secs(20);
/// How long the disk takes in [`Phase::Stall`].
const STALLS_MS: u32 = 8000;
/// Records in a log that a phase begins with: a full segment and some.
const BEFORE: u64 = 1100;
/// Records that pruning keeps.
const KEPT: u64 = 100;
/// Records of one batch of them.
const BATCH: usize = 100;
/// Records of one acknowledgement.
const BURST: u64 = 10;
/// Records that are lost at least in [`Phase::Lose`], and the room there is.
pub(crate) const LOSES: u64 = 100;
const ROOM: usize = 50;
/// How long that, and writing the count down, may take.
const LOSES_WITHIN: Duration = Duration::from_secs(30);

/// What a child does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// A log is made.
    Create,
    /// A log that was closed is opened.
    Start,
    /// A log that was not closed is opened.
    Recover,
    /// Records are written.
    Append,
    /// Old records are removed, and tables rewritten.
    Prune,
    /// The same, while a reader holds the log as it was.
    PruneRead,
    /// A log is closed.
    Stop,
    /// A damaged log is moved aside.
    Salvage,
    /// The disk takes long to make records durable.
    Stall,
    /// Records are written, and calls go on when that fails.
    Lose,
    /// The same, and the process is killed meanwhile.
    LoseKilled,
}

impl Phase {
    pub(crate) const ALL: [Self; 8] = [
        Self::Create,
        Self::Start,
        Self::Recover,
        Self::Append,
        Self::Prune,
        Self::PruneRead,
        Self::Stop,
        Self::Salvage,
    ];
}

/// What a child is told, in its environment.
pub(crate) const TASK: &str = "FAULT_TASK";

/// The child's part.
#[test]
fn child() {
    let Ok(task) = std::env::var(TASK) else { return };
    let plan = Plan::open(Path::new(&std::env::var("FAULT_PLAN").unwrap()));
    let dir = std::env::var("FAULT_LOG").unwrap();
    let [phase, op, error, nth, times] = task.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{task}")
    };
    let phases = Phase::ALL.into_iter().chain([Phase::Stall, Phase::Lose, Phase::LoseKilled]);
    let phase = phases.into_iter().find(|it| format!("{it:?}") == phase).unwrap();
    let fault = Fault {
        plan,
        op: Op::named(op).unwrap(),
        error: error.parse().unwrap(),
        nth: nth.parse().unwrap(),
        times: times.parse().unwrap(),
    };
    println!();
    run(phase, Path::new(&dir), &fault);
}

struct Fault {
    plan: Plan,
    op: Op,
    error: u32,
    nth: u64,
    times: u64,
}

impl Fault {
    /// Does `work` while operations fail.
    fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = self.plan.seen(self.op);
        self.plan.arm(self.op, self.error, self.nth, self.times);
        let result = work();
        self.plan.disarm();
        println!("count {}", self.plan.seen(self.op) - before);
        result
    }
}

fn run(phase: Phase, dir: &Path, fault: &Fault) {
    match phase {
        Phase::Create => begin(dir, fault),
        Phase::Start => {
            prepared(dir, BEFORE);
            begin(dir, fault);
        }
        Phase::Recover => {
            prepared(dir, BEFORE);
            std::fs::remove_file(dir.join("seal")).unwrap();
            begin(dir, fault);
        }
        Phase::Append => {
            let (activity, writer) = open(dir, 0).unwrap();
            let mut next = append(&activity, 1, BURST).unwrap();
            fault.during(|| {
                for _ in 0..30 {
                    match append(&activity, next, BURST) {
                        Ok(after) => next = after,
                        Err(why) => {
                            println!("said {why}");
                            break;
                        }
                    }
                }
            });
            end(&activity, writer);
        }
        Phase::Prune | Phase::PruneRead => {
            prepared(dir, BEFORE);
            let (activity, writer) = open(dir, KEPT).unwrap();
            let reader = (phase == Phase::PruneRead).then(|| activity.view().unwrap());
            let _last = fault.during(|| {
                if let Err(error) = activity.prune() {
                    println!("said {error}");
                }
                append(&activity, BEFORE + 1, BURST).map_err(|why| println!("said {why}"))
            });
            if let Some(reader) = reader {
                // A reader that goes on reads what it began with, or is told that it cannot.
                match reader.list(&Filter::default(), &Page { limit: 5, ..Page::default() }) {
                    Ok(listing) => assert!(listing.records.len() <= 5),
                    Err(error) => println!("said {error}"),
                }
            }
            end(&activity, writer);
        }
        Phase::Stop => {
            let (activity, writer) = open(dir, 0).unwrap();
            append(&activity, 1, BURST).unwrap();
            match fault.during(|| writer.close()) {
                Ok(()) => println!("closed"),
                Err(error) => println!("said {error}"),
            }
            drop(activity);
            begin_again(dir);
        }
        Phase::Stall => {
            let (activity, writer) = open(dir, 0).unwrap();
            append(&activity, 1, BURST).unwrap();
            fault.plan.delay(Op::Sync, STALLS_MS);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            let runtime = runtime.unwrap();
            drop(runtime.block_on(activity.reserve()).unwrap().submit(numbered(BURST + 1)));
            let deadline = Instant::now() + TOLD_WITHIN;
            let failed = loop {
                assert!(Instant::now() < deadline, "nothing is told");
                match activity.health().failed {
                    Some(failed) => break failed,
                    None => std::thread::park_timeout(Duration::from_millis(50)),
                }
            };
            println!("said {failed}");
            println!("refused {}", runtime.block_on(activity.reserve()).unwrap_err());
            fault.plan.disarm();
            end(&activity, writer);
        }
        Phase::Lose | Phase::LoseKilled => {
            let on_failure = OnFailure::Continue;
            let config = Config { on_failure, queue_records: ROOM, ..Config::default() };
            let (activity, writer) = Activity::open(dir, config).unwrap();
            append(&activity, 1, BURST).unwrap();
            fault.plan.arm(fault.op, fault.error, 0, u64::MAX);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            let runtime = runtime.unwrap();
            let deadline = Instant::now() + LOSES_WITHIN;
            while activity.health().lost < LOSES {
                assert!(Instant::now() < deadline, "nothing is lost");
                drop(runtime.block_on(activity.reserve()).unwrap().submit(numbered(BURST + 1)));
            }
            let lost = activity.health().lost;
            while lost::LossTally::read(dir).unwrap().0.total < lost {
                assert!(Instant::now() < deadline, "it is not written down");
                std::thread::park_timeout(Duration::from_millis(5));
            }
            println!("lost {lost}");
            if phase == Phase::LoseKilled {
                std::process::exit(0);
            }
            fault.plan.disarm();
            end(&activity, writer);
            println!("lost {}", activity.health().lost);
        }
        Phase::Salvage => {
            prepared(dir, BEFORE);
            let journal = journal(dir);
            let mut bytes = std::fs::read(&journal).unwrap();
            let middle = bytes.iter().rposition(|byte| *byte != 0).unwrap() / 2;
            bytes[middle] ^= 1;
            std::fs::write(&journal, bytes).unwrap();
            let _ = std::fs::remove_file(dir.join("seal"));
            match fault.during(|| salvage::salvage(dir, 0)) {
                Ok(salvaged) => println!("salvaged {salvaged:?}"),
                Err(error) => {
                    println!("said {error}");
                    println!("salvaged {:?}", salvage::salvage(dir, 0).unwrap());
                }
            }
            begin_again(dir);
        }
    }
}

/// A closed log of so many records.
fn prepared(dir: &Path, records: u64) {
    let (activity, writer) = open(dir, 0).unwrap();
    // In some batches: what is damaged in one is lost with it.
    (1..=records).step_by(BATCH).for_each(|from| drop(append(&activity, from, BATCH as u64)));
    writer.close().unwrap();
}

fn journal(dir: &Path) -> std::path::PathBuf {
    let entries = std::fs::read_dir(dir.join("db")).unwrap();
    let mut journals = entries.map(|entry| entry.unwrap().path());
    journals.find(|path| path.extension().is_some_and(|it| it == "jnl")).unwrap()
}

fn open(dir: &Path, max_records: u64) -> Result<(Activity, Writer), StoreError> {
    Activity::open(dir, Config { max_records, ..Config::default() })
}

/// Opens a log while operations fail, and again afterwards if it could not be.
fn begin(dir: &Path, fault: &Fault) {
    match fault.during(|| open(dir, 0)) {
        Ok((activity, writer)) => end(&activity, writer),
        Err(error) => {
            println!("said {error}");
            begin_again(dir);
        }
    }
}

fn begin_again(dir: &Path) {
    match open(dir, 0) {
        Ok((activity, writer)) => end(&activity, writer),
        Err(error) => println!("not back: {error}"),
    }
}

fn numbered(n: u64) -> Draft {
    let mut draft = Draft::new(Type::ToolCall, Source::Mcp, Status::Success);
    draft.set(Text::RequestId, &n.to_string());
    draft.keep(Raw::Response, n.to_string().repeat(50).as_bytes(), 1024);
    draft
}

/// Submits records and waits until they are durable; the number after the last.
fn append(activity: &Activity, from: u64, records: u64) -> Result<u64, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    for n in from..from + records {
        let slot = runtime.block_on(activity.reserve()).map_err(|refused| refused.to_string())?;
        slot.submit(numbered(n));
    }
    activity.flush().map_err(|refused| refused.to_string())?;
    println!("acknowledged {}", activity.health().durable_seq);
    Ok(from + records)
}

/// Once nothing fails, records can be written again, or it is said why not; the log is closed.
fn end(activity: &Activity, writer: Writer) {
    let deadline = Instant::now() + BACK_WITHIN;
    let result = loop {
        match append(activity, 1_000_000, 1) {
            Ok(_) => break Ok(()),
            Err(why) if Instant::now() > deadline => break Err(why),
            Err(_) => std::thread::park_timeout(Duration::from_millis(50)),
        }
    };
    match result {
        Ok(()) => println!("back"),
        Err(why) => println!("not back: {why}"),
    }
    if let Err(error) = writer.close() {
        println!("said {error}");
    }
}
