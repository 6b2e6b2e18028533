//! Policy rule files: bounded reads and loading.

use crate::fleet_config::SharedFile;
use crate::problem::{Place, Problem, Severity};
use crate::values::{Config, RuleFiles};
use mcpproxy_policy::rules::{
    CheckedRules, KnownTools, MAX_FILE_BYTES, RuleProblem, RuleSet, RuleText,
};
use mcpproxy_runtime::os::bounded_file;
use mcpproxy_runtime::os::bounded_file::NamedPipes;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Config key of the rule files.
pub const RULE_FILES: &str = "policy.files";

/// Reads one rule file.
pub fn read(path: &Path, pipes: NamedPipes) -> Result<RuleText, RuleProblem> {
    let file: Arc<str> = path.display().to_string().into();
    let read = bounded_file::read(path, MAX_FILE_BYTES as u64, pipes);
    let text = read.and_then(|(bytes, _)| bounded_file::text(bytes));
    match text {
        Ok(text) => Ok(RuleText { file, text }),
        Err(error) => Err(RuleProblem::of_file(&file, format!("cannot be read: {error}"))),
    }
}

/// Texts of all rule files and presets; a fleet's config contains its rule files. Fails with the problems of all
/// files.
pub fn texts(rules: &RuleFiles, pipes: NamedPipes) -> Result<Vec<RuleText>, Vec<RuleProblem>> {
    let (mut texts, mut problems) = (Vec::new(), Vec::new());
    for path in &rules.files {
        match read(path, pipes) {
            Ok(text) => texts.push(text),
            Err(problem) => problems.push(problem),
        }
    }
    for SharedFile { name, text } in &rules.shared {
        let file: Arc<str> = name.as_str().into();
        match text.len() <= MAX_FILE_BYTES {
            true => texts.push(RuleText { file, text: text.clone() }),
            false => {
                let problem = format!("is larger than {MAX_FILE_BYTES} bytes");
                problems.push(RuleProblem::of_file(&file, problem));
            }
        }
    }
    texts.extend(rules.presets.iter().map(|preset| preset.text()));
    if problems.is_empty() { Ok(texts) } else { Err(problems) }
}

/// The configured rules, with their warnings.
#[derive(Debug, Default)]
pub struct LoadedRules {
    /// `None` if no rules are configured.
    pub rules: Option<RuleSet>,
    /// Warnings about names of servers and tools that do not exist.
    pub warnings: Vec<RuleProblem>,
}

/// Loads the configured rules. Fails with all problems if one of them is an error.
pub fn load(rules: &RuleFiles, known: &KnownTools) -> Result<LoadedRules, Vec<RuleProblem>> {
    if !rules.decide_anything() {
        return Ok(LoadedRules::default());
    }
    let texts = texts(rules, NamedPipes::Refused)?;
    let CheckedRules { rules, warnings } = RuleSet::check(&texts, rules.options, Some(known))?;
    Ok(LoadedRules { rules: Some(rules), warnings })
}

/// Converts a problem of a rule into a problem of the config.
pub fn problem(of_rule: &RuleProblem) -> Problem {
    let place = Place { line: of_rule.line, column: of_rule.column };
    Problem {
        severity: if of_rule.is_error() { Severity::Error } else { Severity::Warning },
        file: Some(PathBuf::from(&*of_rule.file)),
        place: (of_rule.line > 0).then_some(place),
        key: RULE_FILES.to_owned(),
        text: of_rule.text.clone(),
    }
}

/// The configured servers; their tools are unknown.
pub fn servers(config: &Config) -> KnownTools {
    let servers = config.servers.iter().map(|server| (Arc::clone(&server.name), None));
    KnownTools { servers: servers.collect(), tokens: Vec::new() }
}
