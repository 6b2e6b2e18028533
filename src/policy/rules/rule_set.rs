//! All rules in force: read and checked as one, and asked as one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Deserialize;

use super::cache;
use super::check::{Checker, KnownTools};
use super::explain::{self, Explained};
use super::parsed::ParsedRule;
use super::plan::{Holding, LooksAt, Plan};
use super::problem::{Basis, RuleProblem};
use super::request::{RuleAction, RuleRequest, RuleTarget, Subject};
use super::ruling::Ruling;
use super::split::split;
use crate::policy::denial::{ApprovalDemand, RuleDenial};
use crate::policy::session_facts::SessionFacts;
use crate::tool::Tool;

/// Most bytes of one file of rules.
pub const MAX_FILE_BYTES: usize = 1024 * 1024;
/// Most bytes of all files.
pub const MAX_TOTAL_BYTES: usize = 4 * 1024 * 1024;
/// Most rules of all files.
pub const MAX_RULES: usize = 5_000;
/// Most problems that are told at once.
const MAX_PROBLEMS: usize = 200;

/// Who decides where no rule does.
pub const DEFAULT_RULE: &str = "default";

/// The preset `no-exfiltration`: after private data and content from the open world, nothing goes out to an open-world
/// tool without approval.
pub const NO_EXFILTRATION: &str = "\
@id(\"no-exfiltration\")
@message(\"private data and content from outside came together in this session\")
@requires(\"approval\")
forbid (principal, action in [Action::\"read\", Action::\"write\", Action::\"destructive\"], resource)
when {
  context.capability.open_world
  && context.session.open_world_seen
  && (context.session.max_sensitivity == \"private\"
    || context.intent.data_sensitivity == \"private\")
};
";

/// A rule that is there to be switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// [`NO_EXFILTRATION`]
    NoExfiltration,
}

impl Preset {
    /// The rule.
    #[must_use]
    pub fn text(self) -> RuleText {
        match self {
            Self::NoExfiltration => {
                RuleText { file: "preset no-exfiltration".into(), text: NO_EXFILTRATION.into() }
            }
        }
    }
}

/// What a request comes to that no rule is about (`policy.default`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RulesDefault {
    /// It passes.
    #[default]
    Allow,
    /// It is refused.
    Deny,
}

/// What a refusal leads to (`policy.mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RulesMode {
    /// The request does not go out.
    #[default]
    Enforce,
    /// It is on record, and the request goes out.
    Shadow,
}

impl RulesMode {
    /// Its word in the config.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
        }
    }
}

/// How rules are put in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleOptions {
    /// Where no rule decides.
    pub default: RulesDefault,
    /// What a refusal leads to.
    pub mode: RulesMode,
}

/// One file of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleText {
    /// Its name, as problems tell it.
    pub file: Arc<str>,
    /// What is in it.
    pub text: String,
}

/// A rule as it is written.
#[derive(Clone, Copy, Debug)]
pub struct ListedRule<'a> {
    /// Its name.
    pub name: &'a str,
    /// `permit` or `forbid`.
    pub effect: &'static str,
    /// What the agent is told, or empty.
    pub message: &'a str,
    /// Whether a person can lift it.
    pub approval: ApprovalDemand,
    /// The file that it stands in.
    pub file: &'a str,
    /// Where it begins, from 1.
    pub line: usize,
    /// All of it.
    pub text: &'a str,
}

/// The rules in force.
#[derive(Debug)]
pub struct RuleSet {
    rules: Vec<Arc<ParsedRule>>,
    options: RuleOptions,
    /// Its number among all sets of this process, for plans.
    number: u64,
    version: [u8; 32],
}

impl RuleSet {
    /// Reads and checks rules. What follows from `known` alone is told with [`Basis::Catalog`].
    ///
    /// # Errors
    /// Everything that is wrong, up to 200 problems.
    pub fn load(
        texts: &[RuleText],
        options: RuleOptions,
        known: Option<&KnownTools>,
    ) -> Result<Self, Vec<RuleProblem>> {
        let set = Self::read(texts, options)?;
        let problems = set.problems(known);
        if problems.is_empty() { Ok(set) } else { Err(problems) }
    }

    /// Reads rules without a look at what there is.
    ///
    /// # Errors
    /// What is no rule, and what is too much.
    fn read(texts: &[RuleText], options: RuleOptions) -> Result<Self, Vec<RuleProblem>> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let total: usize = texts.iter().map(|it| it.text.len()).sum();
        let mut problems: Vec<_> = texts
            .iter()
            .filter(|it| it.text.len() > MAX_FILE_BYTES)
            .map(|it| RuleProblem::of_file(&it.file, too_long(it.text.len(), MAX_FILE_BYTES)))
            .collect();
        if let Some(last) = texts.last().filter(|_| problems.is_empty() && total > MAX_TOTAL_BYTES)
        {
            let text = format!("all files together: {}", too_long(total, MAX_TOTAL_BYTES));
            problems.push(RuleProblem::of_file(&last.file, text));
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let mut rules: Vec<Arc<ParsedRule>> = Vec::new();
        let mut names = BTreeMap::new();
        let mut hasher = blake3::Hasher::new();
        for RuleText { file, text } in texts {
            hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
            let short = file.rsplit('/').next().unwrap_or(file);
            for source in split(text) {
                if rules.len() >= MAX_RULES {
                    problems.push(RuleProblem::of_file(
                        file,
                        format!("there are more than {MAX_RULES} rules"),
                    ));
                    return Err(problems);
                }
                match ParsedRule::read(&source, file, short) {
                    Ok(mut rule) => {
                        if names.contains_key(&rule.name)
                            && let Some(name) = rule.name_with_column()
                        {
                            rule.name = name;
                        }
                        let rule = Arc::new(rule);
                        if let Some(first) = names.insert(rule.name.clone(), Arc::clone(&rule)) {
                            let text = format!(
                                "the name '{}' is that of the rule at {}:{} too",
                                rule.name, first.file, first.line
                            );
                            problems.push(rule.problem_at(&rule.name, text, Basis::Text));
                        }
                        if *rule.name == *DEFAULT_RULE {
                            let text = format!(
                                "the name '{DEFAULT_RULE}' is that of policy.default: choose another"
                            );
                            problems.push(rule.problem_at(&rule.name, text, Basis::Text));
                        }
                        rules.push(rule);
                    }
                    Err(found) => problems.extend(found),
                }
                if problems.len() >= MAX_PROBLEMS {
                    return Err(problems);
                }
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        hasher.update(&[options.default as u8]);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Ok(Self { rules, options, number, version: *hasher.finalize().as_bytes() })
    }

    /// What is wrong with the rules as they are, before these tools.
    #[must_use]
    pub fn problems(&self, known: Option<&KnownTools>) -> Vec<RuleProblem> {
        let mut checker = Checker::new(known);
        let found = self.rules.iter().flat_map(|rule| checker.problems(rule));
        found.take(MAX_PROBLEMS).collect()
    }

    /// Whether any rule asks what has gone on in a session before.
    #[must_use]
    pub fn asks_of_sessions(&self) -> bool {
        self.rules.iter().any(|rule| rule.needs.session)
    }

    /// How many rules there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there is no rule, and the default decides everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules as they are written, in the order of the files.
    pub fn listed(&self) -> impl Iterator<Item = ListedRule<'_>> {
        self.rules.iter().map(|rule| ListedRule {
            name: &rule.name,
            effect: if rule.permits() { "permit" } else { "forbid" },
            message: &rule.message,
            approval: rule.approval,
            file: &rule.file,
            line: rule.line,
            text: rule.text(),
        })
    }

    /// How the rules are put in force.
    #[must_use]
    pub fn options(&self) -> RuleOptions {
        self.options
    }

    /// BLAKE3 of the texts and the default: other rules have another.
    #[must_use]
    pub fn version(&self) -> &[u8; 32] {
        &self.version
    }

    /// What the rules say to a request. The mode is the caller's to heed.
    #[must_use]
    pub fn decide(&self, asked: &RuleRequest<'_>) -> Ruling {
        let plan = self.plan(asked);
        // Nothing can be said against what is refused already; what a person could still approve, another rule may refuse.
        let refused = plan.fixed.forbids.iter().any(|rule| rule.approval == ApprovalDemand::None);
        if plan.open.is_empty() || refused {
            return self.ruling(&plan.fixed, asked);
        }
        self.ruling(&plan.holding(asked), asked)
    }

    /// Whether the subject may see the tool in lists: no rule forbids that, and some call of it may pass. What depends
    /// on more than principal and tool is shown.
    #[must_use]
    pub fn shows_tool(&self, subject: Subject<'_>, tool: &Arc<Tool>) -> bool {
        let calls = [RuleAction::Read, RuleAction::Write, RuleAction::Destructive];
        self.shows(subject, RuleTarget::Tool(tool), &calls)
    }

    /// The same for a resource.
    #[must_use]
    pub fn shows_resource(&self, subject: Subject<'_>, server: &str, uri: &str) -> bool {
        let target = RuleTarget::Resource { server, uri };
        self.shows(subject, target, &[RuleAction::ReadResource])
    }

    /// The same for a prompt.
    #[must_use]
    pub fn shows_prompt(&self, subject: Subject<'_>, server: &str, name: &str) -> bool {
        let target = RuleTarget::Prompt { server, name };
        self.shows(subject, target, &[RuleAction::GetPrompt])
    }

    fn shows(&self, subject: Subject<'_>, target: RuleTarget<'_>, uses: &[RuleAction]) -> bool {
        if self.options.mode == RulesMode::Shadow {
            return true;
        }
        let plan = |action| {
            self.plan(&RuleRequest {
                subject,
                action,
                target,
                arguments: b"{}",
                sensitivity: None,
                reason: "",
                client: "",
                session: SessionFacts::default(),
                now: std::time::SystemTime::UNIX_EPOCH,
            })
        };
        let listed = plan(RuleAction::List);
        if !listed.fixed.forbids.is_empty() || listed.fixed.error.is_some() {
            return false;
        }
        uses.iter().any(|action| {
            let plan = plan(*action);
            let refused = !plan.fixed.forbids.is_empty() || plan.fixed.error.is_some();
            let permitted = self.options.default == RulesDefault::Allow
                || !plan.fixed.permits.is_empty()
                || plan.open.iter().any(|rule| rule.permits());
            !refused && permitted
        })
    }

    /// Which rules decide a request, and what each of those that it meets saw.
    #[must_use]
    pub fn explain(&self, asked: &RuleRequest<'_>) -> Explained {
        explain::explain(&self.rules, self.decide(asked), asked)
    }

    /// What a ruling on the request depends on.
    #[must_use]
    pub fn looks_at(&self, asked: &RuleRequest<'_>) -> LooksAt {
        let plan = self.plan(asked);
        if plan.fixed.forbids.iter().any(|rule| rule.approval == ApprovalDemand::None) {
            return LooksAt::default();
        }
        plan.looks_at
    }

    fn plan(&self, asked: &RuleRequest<'_>) -> Arc<Plan> {
        cache::plan(self.number, asked, || Plan::of(&self.rules, asked))
    }

    /// How what holds adds up.
    fn ruling(&self, holding: &Holding, asked: &RuleRequest<'_>) -> Ruling {
        let names =
            |rules: &[Arc<ParsedRule>]| rules.iter().map(|rule| rule.name.clone()).collect();
        if let Some(first) = holding.forbids.first() {
            let asks = holding.forbids.iter().all(|rule| rule.approval == ApprovalDemand::Asked);
            return Ruling::Refused(RuleDenial {
                access: asked.target.shown().into(),
                rule: first.name.clone(),
                message: first.message.clone(),
                rules: names(&holding.forbids),
                // What cannot be told is nobody's to approve.
                approval: match asks && holding.error.is_none() {
                    true => ApprovalDemand::Asked,
                    false => ApprovalDemand::None,
                },
            });
        }
        let refused = |rule: &str, message: String| {
            Ruling::Refused(RuleDenial {
                access: asked.target.shown().into(),
                rule: rule.into(),
                message: message.into(),
                rules: vec![rule.into()],
                approval: ApprovalDemand::None,
            })
        };
        if let Some((rule, why)) = &holding.error {
            return refused(&rule.name, format!("it cannot be evaluated: {why}"));
        }
        match (holding.permits.is_empty(), self.options.default) {
            (false, _) => Ruling::Permitted(names(&holding.permits)),
            (true, RulesDefault::Allow) => Ruling::Permitted(Vec::new()),
            (true, RulesDefault::Deny) => refused(DEFAULT_RULE, "no rule permits it".to_owned()),
        }
    }
}

fn too_long(bytes: usize, most: usize) -> String {
    format!("{bytes} bytes of rules, at most {most} are read")
}
