//! The checks of a config that depend on this machine: commands exist, variables are set, the data
//! folder is writable, the files of rules can be used. For `config check` only: a start goes on without servers that cannot run.
//!
//! Changes nothing, starts no server and connects to none.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::unistd::{AccessFlags, access};
use serde_json::{Value, json};

use super::Flags;
use super::findings::Findings;
use super::parse::{Parsed, parse_all, wrong};
use super::problem::{KeyPath, Place, Problem, Severity};
use super::rule_files::{self, RULE_FILES};
use super::search;
use super::servers::{self, ServerEntry};
use super::values::Config;
use crate::upstream::Mistake;

/// Adds the problems that are found to those of the text. Those of a disabled server are warnings.
pub(super) fn check_machine(parsed: &mut Parsed<'_>, env: &dyn Fn(&str) -> Option<String>) {
    let Parsed { config, findings, data_dir_key } = parsed;
    check_rules(config, findings);
    let Config { servers, data_dir, tls, telemetry, search: section, .. } = config;
    for server in servers {
        check_server(server, env, findings);
    }
    for problem in tls.iter().flat_map(|tls| tls.problems(SystemTime::now())) {
        findings.error(&KeyPath::root("tls").key(problem.key.as_str()), &problem);
    }
    telemetry.check_machine(env, findings);
    search::check_machine(section, env, findings);
    if !data_dir.as_os_str().is_empty()
        && let Some(problem) = unusable(data_dir)
    {
        wrong(findings, data_dir_key, problem);
    }
}

/// What is wrong or odd about a server's entry that is not in the config yet, each with its key within the entry.
#[must_use]
pub fn check_new_server(
    name: &str,
    entry: &Value,
    env: &impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    let text = json!({servers::KEY: {name: entry}}).to_string();
    let mut parsed = parse_all(&text, env, &Flags::default());
    let Parsed { config, findings, .. } = &mut parsed;
    for server in &config.servers {
        check_server(server, env, findings);
    }
    let within = KeyPath::root(servers::KEY).key(name).to_string();
    let told = |problem: Problem| {
        let text = problem.text.strip_prefix(&within)?;
        Some(text.trim_start_matches(['.', ':', ' ']).to_owned())
    };
    parsed.findings.finish(None).into_iter().filter_map(told).collect()
}

fn check_server(
    server: &ServerEntry,
    env: &dyn Fn(&str) -> Option<String>,
    findings: &mut Findings<'_>,
) {
    // A key with an error counts as absent; do not report it as missing as well.
    let half_read = findings.is_wrong(&server.at, &["command", "url", "protocol"]);
    for Mistake { keys, problem, is_form } in server.upstream.mistakes(env) {
        if is_form && half_read {
            continue;
        }
        let path = keys.iter().fold(server.at.clone(), |path, key| path.key(key));
        match server.upstream.enabled {
            true => findings.error(&path, problem),
            false => findings.warn(&path, format_args!("{problem} (the server is disabled)")),
        }
    }
    for problem in server.upstream.exposed_files(env) {
        findings.warn(&server.at, problem);
    }
    for (keys, problem) in server.upstream.oddities() {
        findings.warn(&keys.iter().fold(server.at.clone(), |path, key| path.key(key)), problem);
    }
}

/// What is wrong with the files of rules, as a start finds it: the tools are not known then.
fn check_rules(config: &Config, findings: &mut Findings<'_>) {
    // Rules may name servers, and some of them could not be read.
    if findings.is_wrong(&KeyPath::default(), &[servers::KEY]) {
        return;
    }
    let loaded = rule_files::load(&config.rules, &rule_files::servers(config));
    for problem in loaded.err().into_iter().flatten() {
        let place = Place { line: problem.line, column: problem.column };
        findings.add_outside(Problem {
            severity: Severity::Error,
            file: Some(PathBuf::from(&*problem.file)),
            place: (problem.line > 0).then_some(place),
            key: RULE_FILES.to_owned(),
            text: problem.text,
        });
    }
}

/// Why nothing can be kept in this folder, which is made if it is not there.
fn unusable(folder: &Path) -> Option<String> {
    for there in folder.ancestors() {
        let there = if there.as_os_str().is_empty() { Path::new(".") } else { there };
        let shown = there.display();
        match there.metadata() {
            Ok(it) if !it.is_dir() => return Some(format!("{shown} is no folder: name another")),
            Ok(_) => {
                let refused = access(there, AccessFlags::W_OK | AccessFlags::X_OK).err();
                return refused.map(|error| {
                    format!("{shown} cannot be written to ({}): name another", error.desc())
                });
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => return Some(format!("{shown} cannot be used: {error}")),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_not_there_is_made_and_one_below_a_file_cannot_be() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(unusable(folder.path()), None);
        assert_eq!(unusable(&folder.path().join("a/b")), None);
        assert_eq!(unusable(Path::new("a-folder-that-is-not-there")), None);
        for below in [file.clone(), file.join("a"), file.join("a/b")] {
            let said = unusable(&below).unwrap();
            assert!(said.contains("file is no folder"), "{said}");
        }
        assert!(!folder.path().join("a").exists(), "looking makes nothing");
    }
}
