//! The files of rules on disk: read whole, bounded, and checked.

use std::path::Path;
use std::sync::Arc;

use super::values::{Config, RuleFiles};
use crate::os::bounded_file::{self, NamedPipes};
use crate::policy::rules::{KnownTools, MAX_FILE_BYTES, RuleProblem, RuleSet, RuleText};

/// The key that names them.
pub const RULE_FILES: &str = "policy.files";

/// Reads one file of rules.
///
/// # Errors
/// It cannot be read, is too long, or is no text.
pub fn read(path: &Path, pipes: NamedPipes) -> Result<RuleText, RuleProblem> {
    let file: Arc<str> = path.display().to_string().into();
    let read = bounded_file::read(path, MAX_FILE_BYTES as u64, pipes);
    let text = read.and_then(|(bytes, _)| bounded_file::text(bytes));
    match text {
        Ok(text) => Ok(RuleText { file, text }),
        Err(error) => Err(RuleProblem::of_file(&file, format!("cannot be read: {error}"))),
    }
}

/// The texts of all files and presets.
///
/// # Errors
/// What is wrong with each file.
pub fn texts(rules: &RuleFiles, pipes: NamedPipes) -> Result<Vec<RuleText>, Vec<RuleProblem>> {
    let (mut texts, mut problems) = (Vec::new(), Vec::new());
    for path in &rules.files {
        match read(path, pipes) {
            Ok(text) => texts.push(text),
            Err(problem) => problems.push(problem),
        }
    }
    texts.extend(rules.presets.iter().map(|preset| preset.text()));
    if problems.is_empty() { Ok(texts) } else { Err(problems) }
}

/// The rules that the config asks for; `None` where it asks for none.
///
/// # Errors
/// Everything that is wrong with them.
pub fn load(rules: &RuleFiles, known: &KnownTools) -> Result<Option<RuleSet>, Vec<RuleProblem>> {
    if !rules.decide_anything() {
        return Ok(None);
    }
    RuleSet::load(&texts(rules, NamedPipes::Refused)?, rules.options, Some(known)).map(Some)
}

/// The servers of the config, of which no tool is known yet.
#[must_use]
pub fn servers(config: &Config) -> KnownTools {
    let servers = config.servers.iter().map(|server| (Arc::clone(&server.name), None));
    KnownTools { servers: servers.collect() }
}
