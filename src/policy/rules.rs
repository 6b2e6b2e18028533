//! Authorization rules in Cedar: who may do what with which tool, resource or prompt.
//!
//! [`RuleSet::load`] reads and checks `policy.files`; [`RuleSet::decide`] decides one request. Only this folder uses Cedar, and only its
//! language (parser, validator, evaluator of one condition). This module itself selects the rules that apply to a request by scope, caches
//! them per principal, tool and action, evaluates simple conditions as Cedar does (`condition`), and combines the effects. Files, logging
//! and reload are left to the callers.
//!
//! # Vocabulary
//!
//! * `principal`: `Agent::"anonymous"`, `"admin"`, `"token:NAME"`, `"jwt:SUBJECT"`, `"cert:NAME"`, in `Group::"NAME"`
//! * `action`: `read`, `write`, `destructive` (calls of tools: the greater of the stated operation and the one
//!   recommended for the tool, which is also `intent.operation_type`), `list`, `read_resource` (also to subscribe, and to
//!   complete a template), `get_prompt` (also to complete one)
//! * `resource`: `Tool::"server:tool"`, `Resource::"server:URI"`, `Prompt::"server:name"`, in `Server::"server"`
//! * `context` of calls: `args`, `intent.{operation_type, data_sensitivity, reason}` (unstated: `"unknown"` and
//!   `""`), `capability.{side_effect, parallel_safe, approval, idempotent, open_world}`; of all but `list`:
//!   `session.{max_sensitivity, open_world_seen, calls}` (the higher of the session's and the principal's, except
//!   `calls`) and `carries_out` (whether the request sends client-chosen data to an open-world server: by an open-world
//!   tool, the URI of an unlisted resource, prompt arguments, or completion input); of all: `client`, `now`
//!
//! A rule whose condition reads `args`, `intent` or `capability` without testing for it (`context has args`) and without
//! naming the action itself applies to calls only.
//!
//! # Combination
//!
//! A `forbid` that holds denies. Otherwise a `permit` that holds permits. Otherwise `policy.default` decides, under
//! the name [`DEFAULT_RULE`]. A rule whose condition cannot be evaluated denies, with the reason.
//!
//! # Arguments as records
//!
//! Strings, booleans and integers from -2^63 to 2^63-1 map to themselves, objects to records, and arrays of one kind to
//! sets. The following cannot be mapped: `null`, other numbers (also `1.0` and `1e3`), mixed arrays, values deeper than
//! [`MAX_DEPTH`] or longer than [`MAX_STRING_BYTES`] or [`MAX_ELEMENTS`], and values of a different type than the
//! tool's input schema states. A rule that reads an unmappable value denies. A rule that reads any argument also denies
//! if two keys of one object, at any depth, differ only by case, since servers differ in which one they read. For the
//! same reason, a rule errs if a key, at any depth, differs only by case (`json::fold`) from a name that the rule
//! reads, unless the rule reads the key itself as well: a server that ignores case reads `Path` as `path`. Whether
//! another rule reads the key does not matter. Likewise, a rule errs for a resource or prompt that is another spelling
//! of one that it names (`spelling`).
//!
//! An evaluation plan holds, for a principal, tool and action, the rules that apply, the rules already decided, and the rules that need the
//! rest of the request. Plans are cached per thread.

mod arguments;
mod condition;
mod needs;
mod request;
mod rule;
mod spelling;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use cedar_policy::{Effect, EvalResult, Request, eval_expression};
use mcpproxy_json::fold;
use serde::Deserialize;
use serde_json::Value;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::denial::{ApprovalDemand, RuleDenial};
use crate::rules::arguments::{ArgumentMembers, Unmappable, UnmappableReason, in_one_line};
use crate::rules::needs::{Completeness, InputMembers, RuleNeeds};
use crate::rules::request::RequestEntities;
use crate::rules::rule::{Checker, ParsedRule, split};
use crate::rules::spelling::AskedTarget;
use crate::session_facts::SessionFacts;
use crate::tool::Tool;

pub use arguments::{MAX_ARGUMENT_BYTES, MAX_DEPTH, MAX_ELEMENTS, MAX_STRING_BYTES, readable};
pub use request::{RuleAction, RuleRequest, RuleTarget, Subject};
pub use rule::{Basis, KnownTools, PRINCIPALS, RuleProblem, is_principal};

/// Maximum size of one file of rules, in bytes.
pub const MAX_FILE_BYTES: usize = 1024 * 1024;
/// Maximum size of all files, in bytes.
pub const MAX_TOTAL_BYTES: usize = 4 * 1024 * 1024;
/// Maximum number of rules of all files.
pub const MAX_RULES: usize = 5_000;
/// Maximum number of problems in one report.
const MAX_PROBLEMS: usize = 200;

/// Rule name that stands for `policy.default` in decisions.
pub const DEFAULT_RULE: &str = "default";

/// Preset `no-exfiltration`: after private data and open-world content, sending data to the open world requires approval, whether by a
/// tool, the URI of a resource, prompt arguments, or completion input.
pub const NO_EXFILTRATION: &str = "\
@id(\"no-exfiltration\")
@message(\"private data and content from outside came together\")
@requires(\"approval\")
forbid (principal, action in [Action::\"read\", Action::\"write\", Action::\"destructive\",
  Action::\"read_resource\", Action::\"get_prompt\"], resource)
when {
  context.carries_out
  && context.session.open_world_seen
  && (context.session.max_sensitivity == \"private\"
    || (context has intent && context.intent.data_sensitivity == \"private\"))
};
";

/// A built-in rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// The rule [`NO_EXFILTRATION`].
    NoExfiltration,
}

impl Preset {
    pub fn text(self) -> RuleText {
        match self {
            Self::NoExfiltration => {
                RuleText { file: "preset no-exfiltration".into(), text: NO_EXFILTRATION.into() }
            }
        }
    }
}

/// Decision if no rule applies (`policy.default`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RulesDefault {
    #[default]
    Allow,
    Deny,
}

/// Effect of a denial (`policy.mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RulesMode {
    /// The request is not sent.
    #[default]
    Enforce,
    /// The denial is recorded and the request is sent.
    Shadow,
}

impl RulesMode {
    /// Name in the config.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleOptions {
    pub default: RulesDefault,
    pub mode: RulesMode,
}

/// A rule file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleText {
    /// Name of the file in problems.
    pub file: Arc<str>,
    /// Text of the file.
    pub text: String,
}

/// A rule as written.
#[derive(Clone, Copy, Debug)]
pub struct ListedRule<'a> {
    pub name: &'a str,
    /// `permit` or `forbid`.
    pub effect: &'static str,
    /// Message to the agent, or empty.
    pub message: &'a str,
    /// Whether an approval lifts the rule's denial.
    pub approval: ApprovalDemand,
    /// File of the rule.
    pub file: &'a str,
    /// First line, counted from 1.
    pub line: usize,
    pub text: &'a str,
}

/// Rules that can be enforced.
#[derive(Debug)]
pub struct CheckedRules {
    pub rules: RuleSet,
    /// Names of servers and tools that do not exist, in file order.
    pub warnings: Vec<RuleProblem>,
}

#[derive(Debug)]
pub struct RuleSet {
    rules: Vec<Arc<ParsedRule>>,
    options: RuleOptions,
    /// Unique number in this process, for cached plans.
    number: u64,
    version: [u8; 32],
}

impl RuleSet {
    /// Reads and checks rules. Problems that depend on `known` are marked [`Basis::Catalog`] or [`Basis::Name`].
    ///
    /// # Errors
    /// All problems, up to 200.
    pub fn load(
        texts: &[RuleText],
        options: RuleOptions,
        known: Option<&KnownTools>,
    ) -> Result<Self, Vec<RuleProblem>> {
        let CheckedRules { rules, warnings } = Self::check(texts, options, known)?;
        if warnings.is_empty() { Ok(rules) } else { Err(warnings) }
    }

    /// Reads and checks rules. Names of servers and tools that do not exist are warnings, because whether they exist may
    /// change at any time.
    ///
    /// # Errors
    /// All problems, including warnings, up to 200.
    pub fn check(
        texts: &[RuleText],
        options: RuleOptions,
        known: Option<&KnownTools>,
    ) -> Result<CheckedRules, Vec<RuleProblem>> {
        let (rules, mut problems) = Self::read(texts, options)?;
        problems.extend(rules.problems(known));
        // Errors come first, so that the limit cuts off warnings rather than errors.
        problems.sort_by_key(|problem| !problem.is_error());
        problems.truncate(MAX_PROBLEMS);
        let is_usable = problems.first().is_none_or(|problem| !problem.is_error());
        let position = |problem: &RuleProblem| texts.iter().position(|it| it.file == problem.file);
        problems.sort_by_key(|problem| (position(problem), problem.line, problem.column));
        match is_usable {
            true => Ok(CheckedRules { rules, warnings: problems }),
            false => Err(problems),
        }
    }

    /// Parses rules without checking them against known tools. Returns the rules that can be parsed, and the problems of the others.
    fn read(
        texts: &[RuleText],
        options: RuleOptions,
    ) -> Result<(Self, Vec<RuleProblem>), Vec<RuleProblem>> {
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
                                "the name '{}' is already used by the rule at {}:{}",
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
        hasher.update(&[options.default as u8]);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let version = *hasher.finalize().as_bytes();
        Ok((Self { rules, options, number, version }, problems))
    }

    /// Problems of the rules, given these tools: up to 200 warnings, and at least 200 errors if there are as many.
    pub fn problems(&self, known: Option<&KnownTools>) -> Vec<RuleProblem> {
        let mut checker = Checker::new(known);
        let found = self.rules.iter().flat_map(|rule| checker.problems(rule));
        let mut warnings = 0;
        // Warnings have a limit of their own, so that they do not displace errors.
        let kept = found.filter(|problem| {
            warnings += usize::from(!problem.is_error());
            problem.is_error() || warnings <= MAX_PROBLEMS
        });
        kept.take(2 * MAX_PROBLEMS).collect()
    }

    pub fn reads_session_facts(&self) -> bool {
        self.rules.iter().any(|rule| rule.needs.session)
    }

    pub fn len(&self) -> usize {
        self.rules.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules as written, in file order.
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

    pub fn options(&self) -> RuleOptions {
        self.options
    }

    /// BLAKE3 hash of the rule texts and of `policy.default`.
    pub(crate) fn version(&self) -> &[u8; 32] {
        &self.version
    }

    /// Decides a request. Applying the mode is left to the caller.
    pub fn decide(&self, asked: &RuleRequest<'_>) -> Ruling {
        let asked = &asked.with_effective_action();
        let plan = self.plan(asked);
        // An unconditional denial is final. If an approval would lift a denial, another rule may still deny unconditionally.
        let refused = plan.fixed.forbids.iter().any(|rule| rule.approval == ApprovalDemand::None);
        if plan.open.is_empty() || refused {
            return self.ruling(&plan.fixed, asked);
        }
        self.ruling(&plan.holding(asked), asked)
    }

    /// Whether lists show the tool to the subject: no rule forbids it, and some call may be permitted. Tools whose
    /// rules depend on more than principal and tool are shown.
    pub(crate) fn shows_tool(&self, subject: Subject<'_>, tool: &Arc<Tool>) -> bool {
        self.shows(subject, RuleTarget::Tool(tool), RuleAction::calls_of(tool))
    }

    pub(crate) fn shows_resource(&self, subject: Subject<'_>, server: &str, uri: &str) -> bool {
        let target = RuleTarget::Resource { server, uri };
        self.shows(subject, target, [RuleAction::ReadResource])
    }

    pub(crate) fn shows_prompt(&self, subject: Subject<'_>, server: &str, name: &str) -> bool {
        let target = RuleTarget::Prompt { server, name };
        self.shows(subject, target, [RuleAction::GetPrompt])
    }

    fn shows(
        &self,
        subject: Subject<'_>,
        target: RuleTarget<'_>,
        uses: impl IntoIterator<Item = RuleAction>,
    ) -> bool {
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
                carries_out: false,
                now: std::time::SystemTime::UNIX_EPOCH,
            })
        };
        // A request counts as possible if a person may approve it.
        let refuses = |plan: &Plan| {
            let mut forbids = plan.fixed.forbids.iter();
            plan.fixed.error.is_some() || forbids.any(|rule| rule.approval == ApprovalDemand::None)
        };
        if refuses(&plan(RuleAction::List)) {
            return false;
        }
        uses.into_iter().any(|action| {
            let plan = plan(action);
            let permitted = self.options.default == RulesDefault::Allow
                || !plan.fixed.permits.is_empty()
                || plan.open.iter().any(|rule| rule.permits());
            !refuses(&plan) && permitted
        })
    }

    /// Decides a request and traces every rule that applies.
    pub fn explain(&self, asked: &RuleRequest<'_>) -> Explained {
        let asked = &asked.with_effective_action();
        explain(&self.rules, self.decide(asked), asked)
    }

    /// Inputs that the ruling depends on.
    pub fn inputs_of(&self, asked: &RuleRequest<'_>) -> RuleInputs {
        let plan = self.plan(&asked.with_effective_action());
        if plan.fixed.forbids.iter().any(|rule| rule.approval == ApprovalDemand::None) {
            return RuleInputs::default();
        }
        plan.inputs_of
    }

    fn plan(&self, asked: &RuleRequest<'_>) -> Arc<Plan> {
        cached(self.number, asked, || Plan::of(&self.rules, asked))
    }

    /// Combines the rules that hold.
    fn ruling(&self, holding: &MatchedRules, asked: &RuleRequest<'_>) -> Ruling {
        let names =
            |rules: &[Arc<ParsedRule>]| rules.iter().map(|rule| rule.name.clone()).collect();
        if let Some(first) = holding.forbids.first() {
            let asks = holding.forbids.iter().all(|rule| rule.approval == ApprovalDemand::Asked);
            return Ruling::Refused(RuleDenial {
                access: asked.target.shown().into(),
                rule: first.name.clone(),
                message: first.message.clone(),
                rules: names(&holding.forbids),
                // Approval cannot lift the denial of a rule that errs.
                approval: match asks && holding.error.is_none() {
                    true => ApprovalDemand::Asked,
                    false => ApprovalDemand::None,
                },
                error: None,
            });
        }
        let refused = |rule: &str, message: String, error: Option<&str>| {
            Ruling::Refused(RuleDenial {
                access: asked.target.shown().into(),
                rule: rule.into(),
                message: message.into(),
                rules: vec![rule.into()],
                approval: ApprovalDemand::None,
                error: error.map(Box::from),
            })
        };
        if let Some((rule, why)) = &holding.error {
            return refused(&rule.name, format!("it cannot be evaluated: {why}"), Some(why));
        }
        match (holding.permits.is_empty(), self.options.default) {
            (false, _) => Ruling::Permitted(names(&holding.permits)),
            (true, RulesDefault::Allow) => Ruling::Permitted(Vec::new()),
            (true, RulesDefault::Deny) => {
                refused(DEFAULT_RULE, "no rule permits it".to_owned(), None)
            }
        }
    }
}

fn too_long(bytes: usize, max: usize) -> String {
    format!("{bytes} bytes of rules, at most {max} are read")
}

/// Result of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Truth {
    Yes,
    No,
    /// The rule cannot be evaluated; holds the reason.
    Error(String),
}

/// Rules that hold, and the first error.
#[derive(Clone, Debug, Default)]
struct MatchedRules {
    forbids: Vec<Arc<ParsedRule>>,
    permits: Vec<Arc<ParsedRule>>,
    /// The first rule that could not be evaluated, with the reason.
    error: Option<(Arc<ParsedRule>, String)>,
}

impl MatchedRules {
    fn note(&mut self, rule: &Arc<ParsedRule>, held: Truth) {
        match (held, rule.effect) {
            (Truth::Yes, Effect::Forbid) => self.forbids.push(Arc::clone(rule)),
            (Truth::Yes, Effect::Permit) => self.permits.push(Arc::clone(rule)),
            (Truth::No, _) => {}
            (Truth::Error(why), _) => {
                self.error.get_or_insert_with(|| (Arc::clone(rule), why));
            }
        }
    }
}

/// Inputs read by the rules that apply, besides principal, tool and action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleInputs {
    pub arguments: bool,
    /// The session facts (`context.session`).
    pub session: bool,
    pub capability: bool,
    /// The value `context.carries_out`.
    pub carries_out: bool,
}

/// Evaluation plan for a principal, tool and action.
#[derive(Debug)]
struct Plan {
    /// Rules decided by principal, tool and action alone.
    fixed: MatchedRules,
    /// Rules that read the rest of the request.
    open: Vec<Arc<ParsedRule>>,
    /// Inputs of the open rules.
    needs: RuleNeeds,
    /// Inputs of all rules that apply.
    inputs_of: RuleInputs,
    types: InputMembers,
    /// `None` if no rule is open, or if Cedar rejects the names; in the latter case, open rules err.
    entities: Option<RequestEntities>,
}

impl Plan {
    /// Selects the rules that apply to `asked`.
    fn of(all: &[Arc<ParsedRule>], asked: &RuleRequest<'_>) -> Self {
        let entities = RequestEntities::of(asked.subject, asked.action, asked.target);
        let target = AskedTarget::new(asked.target);
        let mut plan = Self {
            fixed: MatchedRules::default(),
            open: Vec::new(),
            needs: RuleNeeds::default(),
            inputs_of: RuleInputs::default(),
            types: InputMembers::new(),
            entities,
        };
        for rule in all {
            match rule.applies(asked, &target) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(why) => {
                    plan.fixed.note(rule, Truth::Error(why));
                    continue;
                }
            }
            plan.inputs_of.arguments |= rule.needs.args.is_some();
            plan.inputs_of.session |= rule.needs.session;
            plan.inputs_of.capability |= rule.needs.capability;
            plan.inputs_of.carries_out |= rule.needs.carries_out;
            if rule.needs.looks_at_request() {
                plan.needs.add(&rule.needs);
                plan.open.push(Arc::clone(rule));
            } else {
                plan.fixed.note(rule, alone(rule, asked, plan.entities.as_ref()));
            }
        }
        plan.types = types(&plan.needs, asked.target);
        if plan.open.is_empty() {
            plan.entities = None;
        }
        plan
    }

    /// Evaluates all rules for this request.
    fn holding(&self, asked: &RuleRequest<'_>) -> MatchedRules {
        let mut holding = self.fixed.clone();
        if self.open.is_empty() {
            return holding;
        }
        let members = match request::arguments(asked, &self.needs, &self.types) {
            Ok(members) => members,
            Err(unmappable) => {
                if let Some((rule, error)) = self.erring(unmappable) {
                    holding.note(rule, Truth::Error(error.to_string()));
                }
                return holding;
            }
        };
        // The Cedar request is built only if a rule needs it; most rules do not.
        let mut request = None;
        for rule in &self.open {
            let truth = match rule.holds_plainly(asked, members.as_ref()) {
                Some(true) => Truth::Yes,
                Some(false) => Truth::No,
                None => {
                    let make = || {
                        CedarRequest::new(
                            asked,
                            self.entities.as_ref(),
                            &self.needs,
                            members.as_ref(),
                        )
                    };
                    request.get_or_insert_with(make).holds(rule)
                }
            };
            holding.note(rule, truth);
        }
        holding
    }

    /// The first open rule that cannot be evaluated, with the reason. If a key is a case variant, the reason names the
    /// spelling that this rule reads.
    fn erring(&self, mut why: Unmappable) -> Option<(&Arc<ParsedRule>, Unmappable)> {
        let Unmappable { path, why: reason } = &mut why;
        let rule = self.open.iter().find(|rule| match reason {
            UnmappableReason::Variant { key, read } => {
                let own = rule.needs.names.variant_of(fold::hash(key), key);
                own.map(|own| *read = own.into()).is_some()
            }
            _ => rule.needs.args.as_ref().is_some_and(|args| args.covers(path)),
        });
        Some((rule.or(self.open.first())?, why))
    }
}

/// The Cedar form of a request, or the reason why it cannot be built.
struct CedarRequest<'c>(Result<(Request, &'c RequestEntities), String>);

impl<'c> CedarRequest<'c> {
    fn new(
        asked: &RuleRequest<'_>,
        entities: Option<&'c RequestEntities>,
        needs: &RuleNeeds,
        members: Option<&ArgumentMembers<'_>>,
    ) -> Self {
        let entities =
            entities.ok_or_else(|| "the names of the request cannot be compared".to_owned());
        Self(entities.and_then(|entities| {
            Ok((request::request(asked, entities, needs, members)?, entities))
        }))
    }

    fn holds(&self, rule: &ParsedRule) -> Truth {
        let Some(condition) = &rule.condition else { return Truth::Yes };
        let (request, entities) = match &self.0 {
            Ok(asked) => asked,
            Err(why) => return Truth::Error(why.clone()),
        };
        match eval_expression(request, &entities.hierarchy, condition) {
            Ok(EvalResult::Bool(true)) => Truth::Yes,
            Ok(EvalResult::Bool(false)) => Truth::No,
            Ok(_) => Truth::Error("its condition is neither true nor false".to_owned()),
            Err(error) => Truth::Error(in_one_line(&error.to_string())),
        }
    }
}

/// Evaluates a single rule with Cedar.
fn alone(rule: &ParsedRule, asked: &RuleRequest<'_>, entities: Option<&RequestEntities>) -> Truth {
    let types = types(&rule.needs, asked.target);
    match request::arguments(asked, &rule.needs, &types) {
        Ok(members) => {
            CedarRequest::new(asked, entities, &rule.needs, members.as_ref()).holds(rule)
        }
        Err(unmappable) => Truth::Error(unmappable.to_string()),
    }
}

/// Types of the read arguments, from the tool's input schema.
fn types(needs: &RuleNeeds, target: RuleTarget<'_>) -> InputMembers {
    let (Some(wanted), RuleTarget::Tool(tool)) = (&needs.args, target) else {
        return InputMembers::new();
    };
    let schema: Value = serde_json::from_str(tool.input_schema.get()).unwrap_or_default();
    needs::members(wanted, &[&schema], Completeness::All)
}

/// Maximum number of plans in a thread's cache; the cache is cleared when full.
const MAX_PLANS: usize = 4096;

/// A cached plan and its key.
#[derive(Debug)]
struct Known {
    set: u64,
    subject: Box<str>,
    groups: Box<[Box<str>]>,
    tool: PlannedTool,
    action: RuleAction,
    plan: Arc<Plan>,
}

/// Tool of a plan. A catalog tool is identified by its address, which the weak reference keeps valid; a new definition has another address.
#[derive(Debug)]
enum PlannedTool {
    Known(Weak<Tool>),
    Named { server: Box<str>, tool: Box<str> },
}

thread_local! {
    static PLANS: RefCell<HashMap<u64, Known>> = RefCell::new(HashMap::new());
}

/// Cached plan for a request under this rule set, made by `make` if missing. Plans of resources and prompts are not
/// cached, since their names are unbounded.
fn cached(set: u64, asked: &RuleRequest<'_>, make: impl FnOnce() -> Plan) -> Arc<Plan> {
    let key = key(set, asked);
    let found = PLANS.with_borrow(|plans| {
        let known = plans.get(&key).filter(|known| known.is(set, asked))?;
        Some(Arc::clone(&known.plan))
    });
    if let Some(plan) = found {
        return plan;
    }
    let plan = Arc::new(make());
    let tool = match asked.target {
        RuleTarget::Tool(tool) => PlannedTool::Known(Arc::downgrade(tool)),
        RuleTarget::NamedTool { server, tool } => {
            PlannedTool::Named { server: server.into(), tool: tool.into() }
        }
        RuleTarget::Resource { .. } | RuleTarget::Prompt { .. } => return plan,
    };
    let known = Known {
        set,
        subject: asked.subject.id.into(),
        groups: asked.subject.groups.into(),
        tool,
        action: asked.action,
        plan: Arc::clone(&plan),
    };
    PLANS.with_borrow_mut(|plans| {
        if plans.len() >= MAX_PLANS {
            plans.clear();
        }
        plans.insert(key, known);
    });
    plan
}

impl Known {
    fn is(&self, set: u64, asked: &RuleRequest<'_>) -> bool {
        self.set == set
            && self.action == asked.action
            && self.tool.is(&asked.target)
            && *self.subject == *asked.subject.id
            && *self.groups == *asked.subject.groups
    }
}

impl PlannedTool {
    fn is(&self, target: &RuleTarget<'_>) -> bool {
        match (self, target) {
            (Self::Known(known), RuleTarget::Tool(tool)) => known.as_ptr() == Arc::as_ptr(tool),
            (Self::Named { server, tool }, RuleTarget::NamedTool { server: of, tool: named }) => {
                **server == **of && **tool == **named
            }
            (
                Self::Known(_) | Self::Named { .. },
                RuleTarget::Tool(_)
                | RuleTarget::NamedTool { .. }
                | RuleTarget::Resource { .. }
                | RuleTarget::Prompt { .. },
            ) => false,
        }
    }
}

fn key(set: u64, asked: &RuleRequest<'_>) -> u64 {
    let place = match asked.target {
        RuleTarget::Tool(tool) => (Arc::as_ptr(tool) as usize as u64).rotate_left(8),
        RuleTarget::NamedTool { server, tool } => {
            xxh3_64_with_seed(tool.as_bytes(), xxh3_64(server.as_bytes()))
        }
        // These plans are not cached.
        RuleTarget::Resource { .. } | RuleTarget::Prompt { .. } => 0,
    };
    let subject = asked.subject;
    let id =
        xxh3_64_with_seed(subject.id.as_bytes(), place ^ asked.action as u64 ^ set.rotate_left(32));
    subject.groups.iter().fold(id, |key, group| xxh3_64_with_seed(group.as_bytes(), key))
}

/// Decision of the rules about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// Permitted by these rules, or by the default if the list is empty.
    Permitted(Vec<Box<str>>),
    Refused(RuleDenial),
}

/// Maximum length of a value that is shown, in characters.
const MAX_SHOWN_CHARS: usize = 200;

/// A ruling with the trace of every rule that applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    pub ruling: Ruling,
    /// Action that the rules evaluate: for a call, the greater of the stated operation and the one recommended for the
    /// tool.
    pub action: RuleAction,
    /// Rules whose scope matches, in file order.
    pub rules: Vec<RuleTrace>,
    /// Rules that would match a call of this tool by this principal with another action, in file order.
    pub rules_for_other_actions: Vec<RulePlace>,
}

/// A rule and its place in the rule files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulePlace {
    pub rule: Box<str>,
    pub file: Arc<str>,
    /// First line, counted from 1.
    pub line: usize,
    /// `permit` or `forbid`.
    pub effect: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleTrace {
    pub at: RulePlace,
    /// Result of its condition.
    pub outcome: RuleOutcome,
    /// Paths that the rule reads, with their values in Cedar syntax; `None` if absent.
    pub values: Vec<(String, Option<String>)>,
}

/// Result of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleOutcome {
    /// The condition holds.
    Holds,
    /// The condition does not hold.
    DoesNotHold,
    /// The condition cannot be evaluated, so the request is denied.
    Errs(String),
}

fn explain(all: &[Arc<ParsedRule>], ruling: Ruling, asked: &RuleRequest<'_>) -> Explained {
    let entities = RequestEntities::of(asked.subject, asked.action, asked.target);
    let target = AskedTarget::new(asked.target);
    let met = all.iter().filter_map(|rule| match rule.applies(asked, &target) {
        Ok(applies) => applies.then_some((rule, None)),
        Err(why) => Some((rule, Some(Truth::Error(why)))),
    });
    let traces = met.map(|(rule, error)| RuleTrace {
        at: place(rule),
        outcome: match error.unwrap_or_else(|| alone(rule, asked, entities.as_ref())) {
            Truth::Yes => RuleOutcome::Holds,
            Truth::No => RuleOutcome::DoesNotHold,
            Truth::Error(why) => RuleOutcome::Errs(why),
        },
        values: values(&rule.needs, asked, entities.as_ref()),
    });
    let other_calls =
        || RuleAction::ALL.into_iter().filter(|action| action.is_call() && *action != asked.action);
    let is_for_another_action = |rule: &&Arc<ParsedRule>| {
        let matches = |action| rule.applies(&RuleRequest { action, ..*asked }, &target) == Ok(true);
        asked.action.is_call()
            && rule.applies(asked, &target) == Ok(false)
            && other_calls().any(matches)
    };
    let others = all.iter().filter(is_for_another_action).map(|rule| place(rule));
    Explained {
        ruling,
        action: asked.action,
        rules: traces.collect(),
        rules_for_other_actions: others.collect(),
    }
}

fn place(rule: &ParsedRule) -> RulePlace {
    RulePlace {
        rule: rule.name.clone(),
        file: Arc::clone(&rule.file),
        line: rule.line,
        effect: match rule.effect {
            Effect::Permit => "permit",
            Effect::Forbid => "forbid",
        },
    }
}

/// Values of the paths that a rule reads.
fn values(
    needs: &RuleNeeds,
    asked: &RuleRequest<'_>,
    entities: Option<&RequestEntities>,
) -> Vec<(String, Option<String>)> {
    let request = entities.and_then(|entities| {
        let members = request::arguments(asked, needs, &InputMembers::new()).ok()?;
        request::request(asked, entities, needs, members.as_ref()).ok()
    });
    let context = request.as_ref().and_then(cedar_policy::Request::context);
    let value = |path: &[String]| {
        let (first, rest) = path.split_first()?;
        let mut value = context?.get(first)?;
        for name in rest {
            value = match value {
                EvalResult::Record(record) => record.get(name)?.clone(),
                _ => return None,
            };
        }
        let shown = value.to_string();
        Some(shown.chars().take(MAX_SHOWN_CHARS).collect())
    };
    // A record is not traced itself if the rule also reads members of it, because these are traced.
    let is_inner = |path: &[String]| {
        needs.paths.iter().any(|other| other.len() > path.len() && other.starts_with(path))
    };
    let traced = needs.paths.iter().filter(|path| !path.is_empty() && !is_inner(path));
    traced.map(|path| (format!("context.{}", path.join(".")), value(path))).collect()
}
