//! Only records acknowledged less than 50 ms before a kill may be missing, even if other programs compete for
//! every core (ACT-3).

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use mcpproxy_activity::{
    Activity, Config, Draft, Filter, Operation, Page, Source, Status, Text, Type,
};
use nix::time::{ClockId, clock_gettime};

use crate::support::{call, open, slot, wait};

const CHILD: &str = "ACTIVITY_TEST_WINDOW";
/// Environment variable of the long form: the number of kills.
const ROUNDS: &str = "ACTIVITY_WINDOW_ROUNDS";
/// Number of kills in the short form.
const FEW: u64 = 5;
/// Records acknowledged this long before a kill must be there.
const PROMISED_US: u64 = 50_000;
/// Number of calling threads, like a proxy's clients.
const CALLERS: u64 = 4;
/// Pause of each thread between two calls.
const PAUSE: Duration = Duration::from_micros(500);
/// Number of busy threads per core.
const BUSY: usize = 3;
/// Minimum number of calls acknowledged before the kill, and the maximum number of further ones.
const CALLS: u64 = 500;
const MORE_CALLS: u64 = 2500;

/// Generous time limit for slow machines.
const PATIENCE: Duration = Duration::from_secs(30);

/// Microseconds of a clock shared by all processes.
fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
    Duration::from(time).as_micros() as u64
}

/// Child process: makes calls until it is killed. Each line acknowledges a call. It also names the previous call of the
/// same caller, with the time of its acknowledgement.
#[test]
fn child() {
    let Ok(dir) = std::env::var(CHILD) else { return };
    let (activity, _writer) = Activity::open(Path::new(&dir), Config::default()).unwrap();
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let activity = activity.clone();
            std::thread::spawn(move || calls(&activity, caller))
        })
        .collect();
    callers.into_iter().for_each(|caller| caller.join().unwrap());
}

fn calls(activity: &Activity, caller: u64) {
    // Unbuffered, so that a written line is visible even if the process is killed.
    let mut out = File::options().write(true).open("/proc/self/fd/1").unwrap();
    wait(async {
        let mut before = None;
        for n in (caller..).step_by(CALLERS as usize) {
            let slot = activity.reserve().await.unwrap();
            let mut draft = Draft::new(Type::ToolCall, Source::Mcp, Status::Success);
            draft.set(Text::RequestId, &n.to_string());
            slot.submit_before_reply(draft.into()).await.unwrap();
            let line = match before {
                Some((n, at)) => format!("\nack {n} {at}\n"),
                None => "\nack\n".into(),
            };
            out.write_all(line.as_bytes()).unwrap();
            before = Some((n, now()));
            std::thread::park_timeout(PAUSE);
        }
    });
}

/// State left by one killed process.
struct Round {
    /// Number of calls with an acknowledgement time.
    acknowledged: usize,
    /// For each call missing in the log, the time from its acknowledgement to the kill in microseconds.
    missing: Vec<u64>,
}

fn round(calls: u64) -> Round {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "window::child", "--nocapture", "--test-threads=1"])
        .env(CHILD, dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut printed = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut acknowledged = HashMap::new();
    let mut count_ack = |line: String| {
        let words: Vec<&str> = line.split(' ').collect();
        let ["ack", n, at] = words[..] else { return false };
        acknowledged.insert(n.to_owned(), at.parse::<u64>().unwrap());
        true
    };
    let mut received = 0;
    while received < calls {
        received += u64::from(count_ack(printed.next().unwrap().unwrap()));
    }
    let killed = now();
    child.kill().unwrap();
    for line in printed.map_while(Result::ok) {
        count_ack(line);
    }
    child.wait().unwrap();

    let (activity, writer) = open(dir.path());
    assert!(activity.verify(|_, _| {}).unwrap().is_sound());
    let page = Page { limit: 1_000_000, ..Page::default() };
    for record in activity.list(&Filter::default(), &page).unwrap().records {
        acknowledged.remove(&*record.head.request_id).unwrap_or_default();
    }
    writer.close().unwrap();
    let missing = acknowledged.values().map(|at| killed.saturating_sub(*at)).collect();
    Round { acknowledged: received as usize, missing }
}

/// Threads that compete for every core until this is dropped.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn begin() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let cores = std::thread::available_parallelism().unwrap().get();
        for _ in 0..BUSY * cores {
            let over = Arc::clone(&over);
            std::thread::spawn(move || while !over.load(Ordering::Relaxed) {});
        }
        Self(over)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn act_3_kill_on_a_busy_machine_loses_at_most_the_last_50_ms() {
    let rounds = std::env::var(ROUNDS).map_or(FEW, |rounds| rounds.parse().unwrap());
    let _busy = Busy::begin();
    let mut seed = 42_u64;
    let (mut acknowledged, mut missing, mut late) = (0, Vec::new(), Vec::new());
    for _ in 0..rounds {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let Round { acknowledged: received, missing: ages } =
            round(CALLS + (seed >> 32) % MORE_CALLS);
        acknowledged += received;
        late.extend(ages.iter().copied().filter(|age| *age > PROMISED_US));
        missing.extend(ages);
    }
    let worst = missing.iter().max().copied().unwrap_or_default();
    println!(
        "{rounds} kills, {acknowledged} calls acknowledged, {} of them missing, the oldest {worst} µs",
        missing.len()
    );
    assert!(!missing.is_empty(), "no kill hit a call that was not durable: nothing was tested");
    assert!(late.is_empty(), "{} are missing that were acknowledged before: {late:?}", late.len());
}

/// A clock, read by the log's thread for each record and mark, that can block the thread.
#[derive(Default)]
struct Gate {
    /// Number of readings that may pass, and whether the thread is blocked.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) -> u64 {
        let mut state = self.state.lock().unwrap();
        state.1 = state.0 == 0;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |(passes, _)| *passes == 0).unwrap();
        (state.0, state.1) = (state.0 - 1, false);
        1
    }

    fn let_pass(&self, readings: usize) {
        self.state.lock().unwrap().0 += readings;
        self.changed.notify_all();
    }

    /// Waits until the log's thread is blocked.
    fn holds(&self) {
        let state = self.state.lock().unwrap();
        let runs = |(passes, held): &mut (usize, bool)| *passes > 0 || !*held;
        let waited = self.changed.wait_timeout_while(state, PATIENCE, runs).unwrap().1;
        assert!(!waited.timed_out(), "the log's thread does not reach the clock");
    }
}

#[test]
fn act_3_reply_waits_for_a_late_record_submitted_during_another_write() {
    let dir = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate::default());
    let clock = Arc::clone(&gate);
    // The clock is read when the log is opened.
    gate.let_pass(1);
    let wall = move || clock.pass();
    let (activity, writer) =
        Activity::open_with_clock(dir.path(), Config::default(), wall).unwrap();
    let mut begun = slot(&activity);
    let mut entry = Box::new(call(2));
    entry.draft.operation = Some(Operation::Write);
    wait(begun.begin(&mut entry)).unwrap();
    // Blocked while it writes a batch that does not include the next record.
    gate.holds();
    slot(&activity).submit(call(3));
    let submitted = Instant::now();
    while submitted.elapsed() < Duration::from_millis(40) {
        std::thread::yield_now();
    }
    gate.let_pass(1);
    gate.holds();
    let age = submitted.elapsed().as_millis() as u64;
    let lag = activity.health().lag_ms;
    assert!(lag >= age, "{lag} of {age} ms");
    wait(async {
        let reply = activity.reserve().await.unwrap().submit_before_reply(Box::new(call(4)));
        let mut reply = std::pin::pin!(reply);
        let waits = tokio::time::timeout(Duration::ZERO, reply.as_mut()).await.is_err();
        assert!(waits, "a record of {age} ms is not durable");
        gate.let_pass(1000);
        reply.await.unwrap();
        assert_eq!(activity.health().durable_seq, 2);
    });
    begun.submit(entry);
    writer.close().unwrap();
}
