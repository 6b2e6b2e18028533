//! Protocol family of a server, stored on disk so that a legacy server is not probed at each start of the proxy.
//!
//! Only the legacy family is stored. A modern server is probed by its first regular request anyway, while a legacy
//! server that ignores unknown requests delays its start by [`PROBE_LIMIT`](crate::handshake::PROBE_LIMIT). A server is
//! probed again when its entry names another program or URL, when its handshake fails, and after [`REMEMBERED_FOR`],
//! since it may have been updated. An unusable file counts as missing.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::config::{Config, ProtocolEra};
use crate::handshake::Start;
use mcpproxy_policy::tool;
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_runtime::os::{private, state_file};

/// Time after which a server is probed again.
const REMEMBERED_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// Maximum size of a file, in bytes.
const MAX_FILE_BYTES: u64 = 1024;
/// Folder of the files in the data folder.
const FOLDER: &str = "families";

/// Content of a file; exists only for legacy servers.
#[derive(Debug, Serialize, Deserialize)]
struct LegacyServer {
    /// Hash of the program or URL in the entry.
    entry: String,
    /// Time of the refused probe, in seconds since 1970.
    probed_at: u64,
}

/// Stored family of one server. Its methods block.
#[derive(Clone, Debug)]
pub(super) struct FamilyMemory {
    /// Path of the file; `None` if nothing is stored or probed.
    file: Option<PathBuf>,
    entry: String,
}

impl FamilyMemory {
    /// Stored family of the server with this entry.
    pub(super) fn of(server: &str, config: &Config) -> Self {
        let folder = config.data_dir.as_ref().map(|data_dir| data_dir.join(FOLDER));
        let is_probed = config.protocol_era == ProtocolEra::Auto;
        let file = folder.filter(|_| is_probed);
        let file = file.map(|it| it.join(format!("{}.json", tool::server_file_stem(server))));
        let named = (&config.command, &config.args, &config.url);
        let entry = blake3::hash(format!("{named:?}").as_bytes()).to_hex().to_string();
        Self { file, entry }
    }

    /// Start mode of the first handshake.
    pub(super) fn start(&self, now: SystemTime) -> Start {
        let is_fresh = |known: &LegacyServer| {
            // A time in the future was written before the system clock was set back, and does not count.
            let age = seconds(now).checked_sub(known.probed_at);
            known.entry == self.entry && age.is_some_and(|age| age < REMEMBERED_FOR.as_secs())
        };
        match self.read().filter(is_fresh) {
            Some(_) => Start::Known(ProtocolFamily::Legacy),
            None => Start::Probe,
        }
    }

    fn read(&self) -> Option<LegacyServer> {
        let read = state_file::read(self.file.as_ref()?, MAX_FILE_BYTES).ok()??;
        serde_json::from_slice(&read).ok()
    }

    /// Stores the family of a probed server.
    pub(super) fn note(&self, family: ProtocolFamily, now: SystemTime) -> std::io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        match family {
            ProtocolFamily::Modern => state_file::remove(file).map(drop),
            ProtocolFamily::Legacy => {
                if let Some(folder) = file.parent() {
                    private::folder(folder)?;
                }
                let known = LegacyServer { entry: self.entry.clone(), probed_at: seconds(now) };
                state_file::replace(file, &serde_json::to_vec(&known)?)
            }
        }
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEGACY: Start = Start::Known(ProtocolFamily::Legacy);

    fn config(data_dir: PathBuf, command: &str) -> Config {
        let data_dir = Some(data_dir);
        Config { command: Some(command.into()), data_dir, ..Config::default() }
    }

    #[test]
    fn pro_49_legacy_server_is_not_probed_again_until_something_changes() {
        let home = tempfile::tempdir().unwrap();
        let of = |command| FamilyMemory::of("s", &config(home.path().into(), command));
        let (memory, now) = (of("a"), UNIX_EPOCH + Duration::from_secs(1_800_000_000));
        assert_eq!(memory.start(now), Start::Probe, "nothing is known");
        memory.note(ProtocolFamily::Legacy, now).unwrap();
        assert_eq!(memory.start(now), LEGACY);
        assert_eq!(memory.start(now + REMEMBERED_FOR - Duration::from_secs(1)), LEGACY);
        assert_eq!(memory.start(now + REMEMBERED_FOR), Start::Probe, "it may have been updated");
        assert_eq!(memory.start(now - Duration::from_secs(1)), Start::Probe, "another clock");
        assert_eq!(of("b").start(now), Start::Probe, "another program");
        let other = FamilyMemory::of("other", &config(home.path().into(), "a"));
        assert_eq!(other.start(now), Start::Probe);
        memory.note(ProtocolFamily::Modern, now).unwrap();
        assert_eq!(memory.start(now), Start::Probe);
    }

    #[test]
    fn pro_49_unusable_file_counts_as_missing() {
        let home = tempfile::tempdir().unwrap();
        let memory = FamilyMemory::of("s", &config(home.path().into(), "a"));
        let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        memory.note(ProtocolFamily::Legacy, now).unwrap();
        let file = memory.file.clone().unwrap();
        let sound = std::fs::read(&file).unwrap();
        for damaged in [&b""[..], b"null", &sound[..sound.len() / 2], &[b'x'; 5000]] {
            std::fs::write(&file, damaged).unwrap();
            assert_eq!(memory.start(now), Start::Probe);
        }
        let fixed = Config { protocol_era: ProtocolEra::Legacy, ..config(home.path().into(), "a") };
        assert_eq!(FamilyMemory::of("s", &fixed).file, None, "nothing is probed");
    }
}
