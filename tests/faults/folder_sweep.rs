//! Sweep over damaged data folders: every file × every kind of damage × every command that reads it (ACT-9, SF-2).
//!
//! Invariants of each case:
//! - No command aborts, panics or hangs.
//! - `serve` never starts with fewer records than before without a gap record, a fault, or a warning that names the file.
//! - `serve` never starts with a different authority than before (tokens, tools, pins, logins, rules:
//!   [`Seen::authority`]) without a fault or warning that names the file, and permits no call that a rule forbids.
//!   Damage to a file that determines authority ([`Case::decides`]) is reported even if it has no effect. An earlier
//!   version of such a file is not reported, because it is valid, as after the restore of a backup.
//! - `serve --salvage` keeps every record outside the damaged block, or outside the file if the file is missing.
//! - A failing `serve`, `verify` or `doctor` names the file and a command that exists. `verify` and `doctor` fail if
//!   `serve` refuses to start or loses records. For a manifest or a `current` file it is enough to name the folder of
//!   the keyspace: the two are compared with each other, so the message may name the other one.
//!
//! `cargo test` runs a short form: four of the scenes, and one kind of damage per file, in rotation, without the
//! comparison of messages and authority. `tools/faults` runs the full form on an optimized program: every scene, every
//! kind of damage, and `FAULTS_BITS` flipped bits of each file. `FAULTS_ONLY` selects cases by a part of `scene: file`.
//! `FAULTS_PART` selects one of equal parts of the cases: `1/10` is every tenth case. Several cases run in parallel. The
//! full form prints each finding at once, and a table of outcomes at the end.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::folder_scenes::{self, Scene};
use crate::plan::{EIO, Op, Plan};
use crate::proxy::{self, KEY};
use crate::sweep::build;

/// Time limit of a command.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
/// Environment variable of the full form: the number of bits flipped in each file.
const BITS: &str = "FAULTS_BITS";
/// Environment variable that selects cases: a part of `scene: file`.
const ONLY: &str = "FAULTS_ONLY";
/// Environment variable that selects one of equal parts of the cases: `1/10` to `10/10`.
const PART: &str = "FAULTS_PART";
/// Maximum number of records lost by one damaged place: two blocks of 64 (ACT-11), since a sector may span two.
const BLOCK: u64 = 128;
/// Maximum number of records lost by one damaged place in a table. A table can be read only in blocks of its own: they
/// hold 512 bytes of blocks of records, plus the block that exceeds this size. Each record takes 32 bytes or more,
/// because of its hash.
const TABLE_BLOCK: u64 = 2 * (512 / 32 + 64);
/// Time for servers to connect and for the facts of a fleet to be read.
const SETTLES_WITHIN: Duration = Duration::from_secs(5);
/// Maximum number of findings shown for each scene and kind of damage.
const MAX_FINDINGS: u64 = 3;
const SECTOR: u64 = 512;
/// In the short form, every third file with an earlier version is replaced by that version.
const OLDER_EVERY: usize = 3;
/// Number of cases that run in parallel on each core: a fleet node mostly waits for its lease.
const CASES_PER_CORE: usize = 6;

/// The program under test: the one built with the tests, or that of `FAULTS_MCPPROXY`.
pub(crate) fn program() -> OsString {
    std::env::var_os("FAULTS_MCPPROXY").unwrap_or_else(|| env!("CARGO_BIN_EXE_mcpproxy").into())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Damage {
    /// One flipped bit, at this position in per mille of the file.
    Flip(u32),
    CutInHalf,
    ZeroedSector,
    Empty,
    Missing,
    /// An earlier version of the file.
    Older,
    /// Reading it fails with EIO.
    Unreadable,
}

impl Damage {
    const KINDS: [Self; 7] = [
        Self::Flip(500),
        Self::CutInHalf,
        Self::ZeroedSector,
        Self::Empty,
        Self::Missing,
        Self::Older,
        Self::Unreadable,
    ];

    /// Damages a file in a copy of the scene. Returns false if the damage would not change the file.
    fn apply(self, scene: &Scene, copy: &Path, file: &Path) -> bool {
        let path = copy.join(file);
        let length = fs::metadata(&path).unwrap().len();
        let write = || fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        match self {
            Self::Flip(per_mille) => {
                let written = written_bytes(&path);
                if written == 0 {
                    return false;
                }
                let bit = bit_at(written, per_mille);
                // The table is a hard link shared with other copies.
                unlinked(&path);
                let (file, mut byte) = (write(), [0]);
                file.read_exact_at(&mut byte, bit / 8).unwrap();
                byte[0] ^= 1 << (bit % 8);
                file.write_all_at(&byte, bit / 8).unwrap();
            }
            Self::CutInHalf => {
                if length < 2 {
                    return false;
                }
                unlinked(&path);
                write().set_len(written_bytes(&path) / 2).unwrap();
            }
            Self::ZeroedSector => {
                let at = written_bytes(&path) / 2 / SECTOR * SECTOR;
                let bytes = usize::try_from(SECTOR.min(length - at.min(length))).unwrap();
                let mut sector = vec![0; bytes];
                write().read_exact_at(&mut sector, at).unwrap();
                if sector.iter().all(|byte| *byte == 0) {
                    return false;
                }
                unlinked(&path);
                write().write_all_at(&vec![0; bytes], at).unwrap();
            }
            Self::Empty => {
                if length == 0 {
                    return false;
                }
                unlinked(&path);
                write().set_len(0).unwrap();
            }
            Self::Missing => fs::remove_file(&path).unwrap(),
            Self::Older => {
                let Some(older) = scene.older(file) else { return false };
                unlinked(&path);
                fs::copy(older, path).unwrap();
            }
            Self::Unreadable => return length > 0,
        }
        true
    }

    /// Name of this kind of damage in the table of outcomes.
    fn kind(self) -> &'static str {
        match self {
            Self::Flip(_) => "bit flip",
            Self::CutInHalf => "truncation",
            Self::ZeroedSector => "zeroed sector",
            Self::Empty => "empty",
            Self::Missing => "missing",
            Self::Older => "older copy",
            Self::Unreadable => "EIO",
        }
    }
}

/// A bit of the first `bytes` bytes of a file, at this position in per mille. Only the written part of a journal is
/// damaged, because the rest is preallocated.
fn bit_at(bytes: u64, per_mille: u32) -> u64 {
    (bytes * 8).saturating_sub(1) * u64::from(per_mille) / 1000
}

/// Replaces a file by a copy, so that a change to it changes no other file that is linked to it.
fn unlinked(path: &Path) {
    let copy = path.with_extension("unlinked");
    fs::copy(path, &copy).unwrap();
    fs::rename(copy, path).unwrap();
}

#[test]
fn damaged_data_folder_files_are_reported_without_aborting() {
    let tools = tempfile::tempdir().unwrap();
    let shim = build(tools.path());
    let bits = std::env::var(BITS).ok().map(|bits| bits.parse::<u32>().unwrap());
    let is_whole = bits.is_some();
    let scenes = folder_scenes::all(tools.path(), is_whole);
    let files: Vec<_> = scenes.iter().map(Scene::files).collect();
    let programs = Programs::default();
    let undamaged: Vec<_> = std::thread::scope(|scope| {
        let (shim, programs) = (&shim, &programs);
        let of = |scene| scope.spawn(move || undamaged(scene, shim, programs, is_whole));
        let seen: Vec<_> = scenes.iter().map(of).collect();
        seen.into_iter().map(|seen| seen.join().unwrap()).collect()
    });
    let only = std::env::var(ONLY).unwrap_or_default();
    for (scene, files) in scenes.iter().zip(&files) {
        let older: Vec<_> = files.iter().filter(|file| scene.older(file).is_some()).collect();
        let has = |end: &&str| older.iter().any(|file| file.to_string_lossy().ends_with(*end));
        let same: Vec<_> = scene.older.iter().filter(|end| !has(end)).collect();
        assert!(same.is_empty(), "{}: no earlier version of {same:?}: {older:?}", scene.name);
    }
    let mut cases = Vec::new();
    for ((scene, files), undamaged) in scenes.iter().zip(&files).zip(&undamaged) {
        let mut older_files = 0;
        for (number, file) in files.iter().enumerate() {
            if !format!("{}: {}", scene.name, file.display()).contains(&only) {
                continue;
            }
            let has_older = scene.older(file).is_some();
            older_files += usize::from(has_older);
            let mut kinds = Damage::KINDS.to_vec();
            kinds.retain(|kind| has_older || *kind != Damage::Older);
            let damages: Vec<_> = match bits {
                None if has_older && older_files % OLDER_EVERY == 0 => vec![Damage::Older],
                None => vec![kinds[number % kinds.len()]],
                Some(bits) => {
                    let written = written_bytes(&scene.folder.path().join(file));
                    let mut places: Vec<_> = (0..bits).map(|bit| 1000 * bit / bits).collect();
                    places.dedup_by_key(|place| bit_at(written, *place));
                    let flips = places.into_iter().map(Damage::Flip);
                    flips.chain(kinds.into_iter().skip(1)).collect()
                }
            };
            cases.extend(damages.into_iter().map(|damage| Case {
                scene,
                file,
                damage,
                shim: &shim,
                undamaged,
                programs: &programs,
                is_whole,
            }));
        }
    }
    let (part, parts) = std::env::var(PART).map_or((1, 1), |part| {
        let (part, parts) = part.split_once('/').expect("part/parts");
        (part.parse::<usize>().unwrap(), parts.parse::<usize>().unwrap())
    });
    let cases: Vec<_> = cases.into_iter().skip(part - 1).step_by(parts).collect();
    let (next, result) = (AtomicUsize::new(0), Mutex::new(Sweep::default()));
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        for _ in 0..cores * CASES_PER_CORE {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = case.outcome();
                    let done = result.lock().take(case, outcome);
                    if is_whole && done % PROGRESS_CASES == 0 {
                        println!("{done} of {} cases", cases.len());
                    }
                }
            });
        }
    });
    let Sweep { table, findings, done } = result.into_inner();
    if is_whole {
        println!("\n{}", drawn(&table));
    }
    let count = findings.values().map(|(count, _)| count).sum::<u64>();
    let shown: Vec<_> = findings.into_values().flat_map(|(_, shown)| shown).collect();
    assert!(shown.is_empty(), "{count} findings, for example:\n{}", shown.join("\n\n"));
    assert!(done > 20 || !only.is_empty(), "too few cases were tried: {done}");
}

/// Commands run in each case: the columns of the table of outcomes.
const COMMANDS: [&str; 4] = ["verify", "doctor", "serve", "serve --salvage"];
/// Number of cases between two lines about progress.
const PROGRESS_CASES: u64 = 500;

/// Results of one case by command, and the finding about the last command, if any.
#[derive(Default)]
struct Outcome {
    results: Vec<(&'static str, CommandResult)>,
    finding: Option<String>,
}

/// Result of a command on a damaged folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CommandResult {
    /// The damage changes no byte, so no command is run.
    Unchanged,
    /// The state is as before, and no damage is reported.
    Sound,
    /// Nothing is lost, and the damage is reported.
    Repaired,
    /// The command fails and names the file.
    Refused,
    /// The command runs but cannot read records, which is reported as a fault.
    Unreadable,
    /// Number of lost records.
    Lost(u64),
    Finding,
}

/// Number of cases by scene and kind of damage, then by command and result. For [`CommandResult::Lost`] the maximum
/// number of lost records is kept.
type Table = BTreeMap<(&'static str, &'static str), BTreeMap<(&'static str, CommandResult), u64>>;

/// The table in Markdown.
fn drawn(table: &Table) -> String {
    let mut text = format!("| scene | damage | {} |\n", COMMANDS.join(" | "));
    text += &format!("|---|---|{}\n", "---|".repeat(COMMANDS.len()));
    for ((scene, damage), outcomes) in table {
        let cells = COMMANDS.map(|command| {
            let of_command = outcomes.iter().filter(|((of, _), _)| *of == command);
            let (lost, other): (Vec<_>, Vec<_>) =
                of_command.partition(|((_, result), _)| matches!(result, CommandResult::Lost(_)));
            let mut parts: Vec<_> = other
                .into_iter()
                .map(|((_, result), count)| {
                    format!("{} {count}", format!("{result:?}").to_lowercase())
                })
                .collect();
            let count: u64 = lost.iter().map(|(_, count)| *count).sum();
            if let Some(((_, CommandResult::Lost(most)), _)) = lost.last() {
                parts.push(format!("at most {most} records lost {count}"));
            }
            parts.join(", ")
        });
        text += &format!("| {scene} | {damage} | {} |\n", cells.join(" | "));
    }
    text
}

/// Outcomes and findings of the cases so far.
#[derive(Default)]
struct Sweep {
    done: u64,
    table: Table,
    /// Number of findings by scene and kind of damage, and the first of them.
    findings: BTreeMap<(&'static str, &'static str), (u64, Vec<String>)>,
}

impl Sweep {
    /// Adds the outcome of a case. Returns the number of cases so far.
    fn take(&mut self, case: &Case<'_>, outcome: Outcome) -> u64 {
        let Case { scene, file, damage, is_whole, .. } = case;
        let key = (scene.name, damage.kind());
        if let Some(finding) = outcome.finding {
            let (count, shown) = self.findings.entry(key).or_default();
            *count += 1;
            if *count <= MAX_FINDINGS {
                let finding = format!("{}: {} {damage:?}: {finding}", scene.name, file.display());
                if *is_whole {
                    println!("FINDING {finding}\n");
                }
                shown.push(finding);
            }
        }
        let row = self.table.entry(key).or_default();
        for result in outcome.results {
            *row.entry(result).or_default() += 1;
        }
        self.done += 1;
        self.done
    }
}

/// One damaged file.
struct Case<'a> {
    scene: &'a Scene,
    file: &'a Path,
    damage: Damage,
    shim: &'a Path,
    /// The state reported for the undamaged scene.
    undamaged: &'a Seen,
    programs: &'a Programs,
    /// Full form: also checks the output of `verify` and `doctor`, the names of files and commands in messages, and the
    /// authority.
    is_whole: bool,
}

/// The state that a proxy reports for the undamaged scene.
fn undamaged(scene: &Scene, shim: &Path, programs: &Programs, is_whole: bool) -> Seen {
    let (copy, config) = scene.copy();
    let none = Seen::default();
    let (file, damage) = (Path::new(""), Damage::Missing);
    let case = Case { scene, file, damage, shim, undamaged: &none, programs, is_whole };
    for args in [&["activity", "verify"][..], &["doctor"]] {
        let output = case.output(&copy, &config, args).unwrap();
        assert!(output.status.success(), "{}: {}", scene.name, output.stderr);
    }
    match case.serve(&copy, &config, &[]).unwrap() {
        Served::Started(seen) => {
            assert!(seen.records > 0 && seen.faults == "[]", "{}: {seen:?}", scene.name);
            seen
        }
        Served::Refused(output) => panic!("{}: {}", scene.name, output.stderr),
    }
}

impl Case<'_> {
    fn outcome(&self) -> Outcome {
        let mut outcome = Outcome::default();
        if let Err(finding) = self.run(&mut outcome.results) {
            let is_counted = |it: &(_, CommandResult)| it.1 == CommandResult::Finding;
            if !outcome.results.iter().any(is_counted) {
                // A finding about the next command.
                let command = COMMANDS.get(outcome.results.len()).or(COMMANDS.last()).unwrap();
                outcome.results.push((command, CommandResult::Finding));
            }
            outcome.finding = Some(finding);
        }
        outcome
    }

    /// Runs the commands and adds their results, in the order of [`COMMANDS`]. Returns a finding as an error.
    fn run(&self, results: &mut Vec<(&'static str, CommandResult)>) -> Result<(), String> {
        let (copy, config) = self.scene.copy();
        if !self.damage.apply(self.scene, copy.path(), self.file) {
            results.extend(COMMANDS.map(|command| (command, CommandResult::Unchanged)));
            return Ok(());
        }
        let [verify, doctor, serve, salvage] = COMMANDS;
        let mut ended = Vec::new();
        for (command, args) in [(verify, &["activity", "verify"][..]), (doctor, &["doctor"])] {
            let output = self.output(&copy, &config, args)?;
            let is_sound = output.status.success();
            if self.is_whole && !is_sound {
                let text = match command == doctor {
                    true => wrong_findings(&output.stderr),
                    false => output.stderr.clone(),
                };
                self.names_file_and_command(command, &text)?;
            }
            let result = if is_sound { CommandResult::Sound } else { CommandResult::Refused };
            results.push((command, result));
            ended.push((command, output));
        }
        let seen = match self.serve(&copy, &config, &[])? {
            Served::Started(seen) if !seen.is_unreadable => {
                results.push((serve, self.judge(&seen, "serve")?));
                Some(seen)
            }
            started_or_refused => {
                let result = match started_or_refused {
                    // Unreadable records must be a fault; the next check of the tables repairs them.
                    Served::Started(seen) if seen.faults == "[]" => {
                        return Err(format!("unreadable records are no fault: {seen:?}"));
                    }
                    Served::Started(seen) => {
                        self.names_file_and_command("the fault", &seen.faults)?;
                        CommandResult::Unreadable
                    }
                    Served::Refused(output) => {
                        self.names_file_and_command("the refusal", &output.stderr)?;
                        CommandResult::Refused
                    }
                };
                results.push((serve, result));
                // On a new copy, because the first start may have repaired part of it.
                drop(copy);
                let (again, config_again) = self.scene.copy();
                self.damage.apply(self.scene, again.path(), self.file);
                results.push((salvage, self.salvage(&again, &config_again)?));
                None
            }
        };
        let is_found = seen.is_none_or(|seen| {
            seen.records < self.undamaged.records || !self.is_of_the_log() && seen.faults != "[]"
        });
        for (place, (command, output)) in ended.into_iter().enumerate() {
            // Only a running node detects outdated facts, by comparing them with the store.
            let is_of_the_store =
                self.damage == Damage::Older && self.file.ends_with("fleet/facts.json");
            let reads_it = (command == doctor && !is_of_the_store) || self.is_of_the_log();
            if self.is_whole && is_found && reads_it && output.status.success() {
                results[place].1 = CommandResult::Finding;
                return Err(format!("{command} finds nothing: {}", output.stderr));
            }
        }
        Ok(())
    }

    fn salvage(&self, copy: &tempfile::TempDir, config: &Path) -> Result<CommandResult, String> {
        match self.serve(copy, config, &["--salvage"])? {
            Served::Started(seen) if seen.is_unreadable => {
                Err(format!("salvaged records are unreadable: {seen:?}"))
            }
            Served::Started(seen) => {
                let result = self.judge(&seen, "serve --salvage")?;
                Ok(result.max(CommandResult::Repaired))
            }
            Served::Refused(output) => {
                self.names_file_and_command("the refusal", &output.stderr)?;
                match self.is_of_the_log() {
                    true => Err(format!("salvage does not help: {}", output.stderr)),
                    false => Ok(CommandResult::Refused),
                }
            }
        }
    }

    fn is_of_the_log(&self) -> bool {
        self.file.starts_with("data/activity")
    }

    /// Whether the file determines authority, so that any damage to it is reported. Some similar files do not: the last
    /// good copy of such a file, a stored tool set (`.tools`), which has an effect only until its server has answered,
    /// and the token file of a fleet node, whose tokens are in the fleet's facts.
    fn decides(&self) -> bool {
        let name = self.file.file_name().unwrap().to_string_lossy();
        let folder = self.file.parent().unwrap();
        let is_of_a_fleet = folder.ends_with("fleet");
        match &*name {
            name if name.ends_with(".last-good") => false,
            "tokens.json" => !self.scene.folder.path().join("store").exists(),
            "config.json" | "facts.json" | "node_key" => is_of_a_fleet,
            name => name.ends_with(".pins") || folder.ends_with("oauth"),
        }
    }

    /// Checks that changed authority and missing records are reported, and that no more records are lost than the bound.
    fn judge(&self, seen: &Seen, command: &str) -> Result<CommandResult, String> {
        let reported = |is_reported| match is_reported {
            true => CommandResult::Repaired,
            false => CommandResult::Sound,
        };
        let (before, older) = (self.undamaged, self.damage == Damage::Older);
        let is_named = names(self.file, &seen.log) || names(self.file, &seen.faults);
        if seen.permits_forbidden && !before.permits_forbidden {
            return Err(format!("{command}: a forbidden call is permitted: {seen:?}"));
        }
        if !self.is_of_the_log() {
            if seen.records < before.records {
                return Err(format!("{command}: records are missing: {seen:?}"));
            }
            let is_same = !self.is_whole || seen.authority == before.authority;
            if !is_named && !older && (!is_same || self.decides()) {
                return Err(format!(
                    "{command} starts silently, before: {before:?}, now: {seen:?}"
                ));
            }
            if seen.faults != "[]" {
                self.names_file_and_command("the fault", &seen.faults)?;
            }
            return Ok(reported(is_named));
        }
        if self.is_whole && seen.authority != before.authority {
            return Err(format!("{command}: other authority, before: {before:?}, now: {seen:?}"));
        }
        let missing = before.records.saturating_sub(seen.records);
        if missing == 0 {
            return Ok(reported(is_named || seen.gaps > 0));
        }
        if seen.gaps == 0 && !is_named {
            return Err(format!(
                "{command} starts silently with {missing} records missing: {seen:?}"
            ));
        }
        let is_table = self.file.parent().is_some_and(|folder| folder.ends_with("tables"));
        let bound = if is_table { TABLE_BLOCK } else { BLOCK };
        if self.is_local() && missing > bound {
            return Err(format!(
                "{command}: {missing} records are lost, at most {bound} may be: {seen:?}"
            ));
        }
        Ok(CommandResult::Lost(missing))
    }

    /// Whether the damage affects only one place of a file. Other damage may lose all of the file's content.
    fn is_local(&self) -> bool {
        matches!(self.damage, Damage::Flip(_) | Damage::ZeroedSector)
    }

    fn names_file_and_command(&self, who: &str, text: &str) -> Result<(), String> {
        // An older `seal` has checksums that do not match, but they do not show that it is the outdated file.
        let is_named =
            names(self.file, text) || self.file.ends_with("seal") && text.contains("altered");
        if self.is_whole && !is_named {
            return Err(format!("{who} does not name the file: {text}"));
        }
        // An unreadable file needs no command in the message, because no command of the program repairs a disk.
        match self.programs.names_command(text) || self.damage == Damage::Unreadable {
            true => Ok(()),
            false => Err(format!("{who} names no command, or one that does not exist: {text}")),
        }
    }

    /// Runs a command. `stderr` of the result has its whole output.
    fn output(
        &self,
        copy: &tempfile::TempDir,
        config: &Path,
        args: &[&str],
    ) -> Result<Ended, String> {
        let mut command = self.command(copy, config, args);
        let output = ended(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())?;
        output.check()?;
        Ok(output)
    }

    fn command(&self, copy: &tempfile::TempDir, config: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.args(args).env("MCPPROXY_CONFIG", config).stdin(Stdio::null());
        if self.damage == Damage::Unreadable {
            let plan = copy.path().join("plan");
            Plan::create(&plan);
            Plan::open(&plan).arm(Op::Read, EIO, 0, u64::MAX);
            command
                .env("FAULT_PLAN", plan)
                .env("FAULT_DIR", copy.path().join(self.file))
                .env("LD_PRELOAD", self.shim);
        }
        command
    }

    /// Starts a proxy, reads its report, and stops it.
    fn serve(
        &self,
        copy: &tempfile::TempDir,
        config: &Path,
        more: &[&str],
    ) -> Result<Served, String> {
        let log = copy.path().join("log");
        let mut command = self.command(copy, config, &[&["serve"], more].concat());
        command.stdout(Stdio::piped()).stderr(fs::File::create(&log).unwrap());
        let mut child = command.spawn().unwrap();
        let Some(address) = proxy::address(child.stdout.take().unwrap()) else {
            let mut output = ended(child)?;
            output.stderr = fs::read_to_string(&log).unwrap();
            output.check()?;
            if output.status.success() {
                return Err(format!("it succeeded without serving: {}", output.stderr));
            }
            return Ok(Served::Refused(output));
        };
        let seen = look(&address, &self.scene.tokens, self.undamaged);
        let pid = pid_of(&child);
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let mut output = ended(child)?;
        output.stderr = fs::read_to_string(&log).unwrap();
        output.check()?;
        let mut seen = seen?;
        let is_warning = |line: &&str| line.contains(" WARN ") || line.contains(" ERROR ");
        seen.log = output.stderr.lines().filter(is_warning).collect::<Vec<_>>().join("\n");
        Ok(Served::Started(seen))
    }
}

enum Served {
    Started(Seen),
    Refused(Ended),
}

/// Whether a text names a file by its folder and name, or a manifest or `current` of the log by its keyspace.
fn names(file: &Path, text: &str) -> bool {
    let parts: Vec<_> = file.iter().map(|part| part.to_string_lossy()).collect();
    let wanted = match &parts[..] {
        [_, _, _, keyspaces, keyspace, _] if *keyspaces == "keyspaces" => {
            format!("{keyspaces}/{keyspace}")
        }
        [.., folder, name] => format!("{folder}/{name}"),
        _ => return false,
    };
    text.match_indices(&wanted).any(|(at, _)| {
        let mut rest = text[at + wanted.len()..].chars();
        match rest.next() {
            // A dot begins an extension of a longer name, or ends a sentence.
            Some('.') => !rest.next().is_some_and(char::is_alphanumeric),
            Some(next) => !next.is_alphanumeric() && !matches!(next, '-' | '_'),
            None => true,
        }
    })
}

/// Findings of `doctor` with the outcome `wrong`, and their fixes.
fn wrong_findings(output: &str) -> String {
    let mut is_wrong = false;
    let lines = output.lines().filter(|line| {
        is_wrong = line.starts_with("wrong") || is_wrong && line.starts_with(' ');
        is_wrong
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Commands named by messages, and whether they exist.
#[derive(Default)]
struct Programs(Mutex<BTreeMap<String, bool>>);

impl Programs {
    /// Whether a text names a command: `cp -p` of an existing copy, or at least one command of `mcpproxy`. All named
    /// commands of `mcpproxy` must exist.
    fn names_command(&self, text: &str) -> bool {
        let words = |text: &str| {
            let end = text.find(['`', '\'', '"', ',', ';', '(', ')', '\n', '&', '\\']);
            text[..end.unwrap_or(text.len())].to_owned()
        };
        let named: Vec<_> = text
            .match_indices("mcpproxy ")
            .map(|(at, found)| words(&text[at + found.len()..]))
            .collect();
        let copies = text.contains("cp -p ") && text.contains(".last-good");
        (copies || !named.is_empty()) && named.iter().all(|named| self.exists(named))
    }

    fn exists(&self, words: &str) -> bool {
        if let Some(known) = self.0.lock().get(words) {
            return *known;
        }
        let is_name = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        let (options, names): (Vec<_>, Vec<_>) =
            words.split_whitespace().take_while(is_name).partition(|word| word.starts_with('-'));
        // The words are a command and possibly the name of its object.
        let exists = (1..=names.len()).rev().any(|count| {
            let mut command = Command::new(program());
            let output = command.args(&names[..count]).arg("--help").output().unwrap();
            let help = String::from_utf8_lossy(&output.stdout).into_owned();
            output.status.success() && options.iter().all(|option| help.contains(option))
        });
        self.0.lock().insert(words.to_owned(), exists);
        exists
    }
}

/// State reported by a running proxy.
#[derive(Debug, Default)]
struct Seen {
    records: u64,
    gaps: u64,
    faults: String,
    /// Agent tokens and whether they are accepted, tools and held definitions, states of the servers.
    authority: Value,
    /// Whether a call that a rule of the fleet forbids is permitted.
    permits_forbidden: bool,
    /// Reading the records fails.
    is_unreadable: bool,
    /// Warnings and errors in its log.
    log: String,
}

/// Result of a command.
struct Ended {
    status: ExitStatus,
    stderr: String,
}

impl Ended {
    /// Checks that the process ended without a signal or a panic.
    fn check(&self) -> Result<(), String> {
        // 101 is the exit code of a panic.
        let code = self.status.code();
        if code.is_none_or(|code| code == 101) || self.stderr.contains("panicked at") {
            return Err(format!("it crashed ({}): {}", self.status, self.stderr));
        }
        Ok(())
    }
}

fn pid_of(child: &Child) -> String {
    child.id().to_string()
}

/// Waits for a child, with a time limit. `stderr` of the result has the output of both streams, if they are pipes.
fn ended(mut child: Child) -> Result<Ended, String> {
    fn reader<R: Read + Send + 'static>(mut output: R) -> std::thread::JoinHandle<String> {
        std::thread::spawn(move || {
            let mut text = String::new();
            let _ = output.read_to_string(&mut text);
            text
        })
    }
    let out = child.stdout.take().map(reader);
    let err = child.stderr.take().map(reader);
    let deadline = Instant::now() + TIMEOUT;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            return Err("it does not terminate".to_owned());
        }
        std::thread::park_timeout(Duration::from_millis(5));
    };
    let stderr = [out, err].into_iter().flatten().map(|reader| reader.join().unwrap()).collect();
    Ok(Ended { status, stderr })
}

/// Reads the state of the proxy at `address`. Waits up to [`SETTLES_WITHIN`] until its authority is that of `undamaged`.
fn look(address: &str, tokens: &[String], undamaged: &Seen) -> Result<Seen, String> {
    let mut is_unreadable = false;
    let mut count = |kind: &str| {
        let path = format!("/api/v1/activity?type={kind}&limit=1&with_total=true");
        let (status, page) = get(address, &path)?;
        is_unreadable |= status == 500;
        Ok::<_, String>(page["data"]["total"].as_u64().unwrap_or(0))
    };
    let records = count("tool_call")?;
    let gaps = count("gap")?;
    let deadline = Instant::now() + SETTLES_WITHIN;
    let (authority, faults) = loop {
        let (authority, is_settled) = authority(address, tokens)?;
        let faults = faults_except_quarantine(get(address, "/api/v1/status")?.1);
        let is_expected = is_settled && authority == undamaged.authority;
        let is_final = is_settled && (faults != "[]" || undamaged.records == 0);
        if is_expected || is_final || Instant::now() > deadline {
            break (authority, faults);
        }
        std::thread::park_timeout(Duration::from_millis(50));
    };
    let permits_forbidden = permits_forbidden(address)?;
    let log = String::new();
    Ok(Seen { records, gaps, faults, authority, permits_forbidden, is_unreadable, log })
}

/// The faults of a status. Tools in quarantine are left out: their number is part of the authority.
fn faults_except_quarantine(mut status: Value) -> String {
    let faults = status["data"]["faults"].as_array_mut().map(std::mem::take).unwrap_or_default();
    let is_quarantine =
        |fault: &Value| fault["cause"].as_str().is_some_and(|it| it.ends_with("in quarantine"));
    faults.into_iter().filter(|fault| !is_quarantine(fault)).collect::<Value>().to_string()
}

/// The authority of each principal, and whether all servers are connected or failed.
fn authority(address: &str, secrets: &[String]) -> Result<(Value, bool), String> {
    let of = |path: &str| get(address, path).map(|(_, body)| body["data"].clone());
    let servers = of("/api/v1/servers")?["servers"].clone();
    let servers = servers.as_array().cloned().unwrap_or_default();
    let is_settled = servers.iter().all(|server| server["state"] != "connecting");
    let states: Vec<_> = servers
        .iter()
        .map(|server| {
            json!([server["name"], server["state"], server["tools"], server["quarantined"]])
        })
        .collect();
    let accepted: Vec<_> = secrets
        .iter()
        .map(|secret| {
            let head = format!("GET /api/v1/tools HTTP/1.1\r\nX-API-Key: {secret}\r\n");
            proxy::request(address, &head, "").map(|(status, _)| status).unwrap_or(0)
        })
        .collect();
    let (tokens, tools) = (of("/api/v1/tokens")?["tokens"].clone(), of("/api/v1/tools")?);
    let authority = json!({"servers": states, "accepted": accepted, "tokens": tokens,
        "tools": tools["tools"]});
    Ok((authority, is_settled))
}

/// Whether a call forbidden by the rule of the scenes is permitted, that is, answered by the server.
fn permits_forbidden(address: &str) -> Result<bool, String> {
    let call = json!({"tool_name": "call_tool_read", "arguments": {"name": "s:other", "args": {}},
        "intent": {"operation_type": "read"}});
    let head = format!("POST /api/v1/tools/call HTTP/1.1\r\nX-API-Key: {KEY}\r\n");
    let (status, body) = proxy::request(address, &head, &call.to_string())
        .map_err(|error| format!("the call: {error}"))?;
    Ok(status == 200 && body["data"]["isError"] != true)
}

fn get(address: &str, path: &str) -> Result<(u16, Value), String> {
    proxy::get(address, path).map_err(|error| format!("GET {path}: {error}"))
}

/// Length of a file without trailing zeros.
fn written_bytes(path: &Path) -> u64 {
    folder_scenes::written(path).len() as u64
}
