//! Parsed rules, their source positions and problems, and the static check of rules against Cedar's types, the tools of the
//! catalog and their input schemas.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use cedar_policy::ffi::DetailedError;
use cedar_policy::{
    Effect, Expression, Policy, PolicyId, PolicySet, Schema, ValidationError, ValidationMode,
    ValidationWarning, Validator,
};
use mcpproxy_runtime::nearest::{Effort, nearest, nearest_within};
use serde_json::Value;

use crate::denial::ApprovalDemand;
use crate::rules::arguments::{ArgumentMembers, in_one_line};
use crate::rules::condition::Condition;
use crate::rules::needs;
use crate::rules::needs::{Completeness, GUESSES, InputMembers, RuleNeeds, Wanted};
use crate::rules::request::{EntityKind, Named, RuleAction, RuleRequest, RuleTarget, Scope};
use crate::rules::spelling::{AskedTarget, NamedTargets};
use crate::tool::Tool;

const MAX_RULE_BYTES: usize = 64 * 1024;
/// Maximum length of the name in `@id`, in characters.
const MAX_ID_CHARS: usize = 128;
/// Maximum length of `@message`, in characters.
const MAX_MESSAGE_CHARS: usize = 500;
/// Prefixes of authenticated agent ids.
const PROVEN: [&str; 3] = ["token:", "jwt:", "cert:"];

#[derive(Clone)]
pub(super) struct ParsedRule {
    /// The name in `@id`, or `FILE:LINE` by default.
    pub(super) name: Box<str>,
    pub(super) file: Arc<str>,
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) effect: Effect,
    /// The text of `@message`, or empty.
    pub(super) message: Box<str>,
    pub(super) approval: ApprovalDemand,
    pub(super) scope: Scope,
    /// Condition; `None` if the rule is unconditional.
    pub(super) condition: Option<Expression>,
    /// The condition in the form evaluated without Cedar, if it is simple.
    plain: Option<Condition>,
    pub(super) needs: RuleNeeds,
    named: NamedTargets,
    /// Whether the rule applies only to calls, because its condition reads members that other requests lack.
    calls_only: bool,
    pub(super) policy: Policy,
    text: Box<str>,
}

impl fmt::Debug for ParsedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParsedRule").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ParsedRule {
    /// Parses one rule of `file`; `short` is used in generated names.
    pub(super) fn read(
        source: &RuleSource<'_>,
        file: &Arc<str>,
        short: &str,
    ) -> Result<Self, Vec<RuleProblem>> {
        let wrong = |text: String| {
            vec![RuleProblem {
                file: Arc::clone(file),
                line: source.line,
                column: source.column,
                text,
                basis: Basis::Text,
            }]
        };
        if source.text.len() > MAX_RULE_BYTES {
            return Err(wrong(format!("the rule is longer than {MAX_RULE_BYTES} bytes")));
        }
        if !source.text.ends_with(';') {
            return Err(wrong("the rule is not finished: a ';' is missing at its end".to_owned()));
        }
        let made_up = format!("{short}:{}", source.line);
        let parsed =
            Policy::parse(Some(PolicyId::new(&made_up)), source.text).map_err(|errors| {
                let one = |error| at(source, file, &DetailedError::from(error), Basis::Text);
                errors.iter().map(one).collect::<Vec<_>>()
            })?;
        let name = parsed.annotation("id").unwrap_or(&made_up).to_owned();
        if name.is_empty()
            || name.chars().count() > MAX_ID_CHARS
            || name.chars().any(char::is_control)
        {
            let text = format!("@id must have 1 to {MAX_ID_CHARS} characters that can be shown");
            return Err(wrong(text));
        }
        let message = parsed.annotation("message").unwrap_or_default();
        if message.chars().count() > MAX_MESSAGE_CHARS {
            return Err(wrong(format!("@message has more than {MAX_MESSAGE_CHARS} characters")));
        }
        let effect = parsed.effect();
        let approval = match (parsed.annotation("requires"), effect) {
            (None, _) => ApprovalDemand::None,
            (Some("approval"), Effect::Forbid) => ApprovalDemand::Asked,
            (Some("approval"), Effect::Permit) => {
                return Err(wrong("@requires(\"approval\") belongs on a forbid".to_owned()));
            }
            (Some(other), _) => {
                return Err(wrong(format!(
                    "@requires({other:?}) is not known: only \"approval\" is"
                )));
            }
        };
        let json = parsed.to_json().map_err(|error| wrong(in_one_line(&error.to_string())))?;
        let needs = json.get("conditions").map_or(Some(RuleNeeds::default()), RuleNeeds::of);
        let needs = needs.ok_or_else(|| wrong("the condition is nested too deep".to_owned()))?;
        let plain = json.get("conditions").and_then(Condition::of);
        let mut scope = Scope::of(&parsed);
        let calls_only = needs.calls_only() && scope.restrict_to_calls();
        let condition = parsed.as_ref().non_scope_constraints().cloned().map(Expression::from);
        Ok(Self {
            name: name.into(),
            file: Arc::clone(file),
            line: source.line,
            column: source.column,
            effect,
            message: message.into(),
            approval,
            scope,
            condition,
            plain,
            needs,
            named: NamedTargets::of(&parsed),
            calls_only,
            policy: parsed,
            text: source.text.into(),
        })
    }

    /// Generated name with the column, because two rules can begin on one line. `None` if `@id` names the rule.
    pub(super) fn name_with_column(&self) -> Option<Box<str>> {
        let made_up = self.policy.annotation("id").is_none();
        made_up.then(|| format!("{}:{}", self.name, self.column).into())
    }

    /// Whether the condition must be evaluated for a request for `target`. Returns an error if the target is another spelling of a target
    /// that the rule names.
    pub(super) fn applies(
        &self,
        asked: &RuleRequest<'_>,
        target: &AskedTarget<'_>,
    ) -> Result<bool, String> {
        match self.named.meant(target) {
            Some(meant) if self.scope.fits_use(asked.subject, asked.action) => {
                Err(target.misspells(meant))
            }
            Some(_) => Ok(false),
            None => Ok(self.scope.fits(asked.subject, asked.action, asked.target)),
        }
    }

    /// Evaluates the condition without Cedar; `None` if Cedar is needed.
    pub(super) fn holds_plainly(
        &self,
        asked: &RuleRequest<'_>,
        members: Option<&ArgumentMembers<'_>>,
    ) -> Option<bool> {
        self.plain.as_ref()?.holds(asked, members)
    }

    /// Source text of the rule.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn permits(&self) -> bool {
        self.effect == Effect::Permit
    }

    /// Problem of this rule reported by Cedar.
    pub(super) fn problem(&self, error: &DetailedError, basis: Basis) -> RuleProblem {
        let source = RuleSource { text: &self.text, line: self.line, column: self.column };
        at(&source, &self.file, error, basis)
    }

    /// Whether the expression that Cedar reports reads an argument of a request that has arguments.
    fn is_about_arguments(&self, error: &DetailedError) -> bool {
        if error.message.contains("attribute `args`") {
            return false;
        }
        let mut labels = error.source_locations.iter();
        labels.any(|label| {
            self.text.get(label.loc.start..label.loc.end).is_some_and(|at| at.contains("args"))
        })
    }

    /// Problem at a quoted word of the rule, or at its beginning.
    pub(super) fn problem_at(&self, word: &str, text: String, basis: Basis) -> RuleProblem {
        let source = RuleSource { text: &self.text, line: self.line, column: self.column };
        let (line, column) = source.place(self.text.find(&format!("{word:?}")).unwrap_or_default());
        RuleProblem { file: Arc::clone(&self.file), line, column, text, basis }
    }

    /// Problems of actions that do not exist.
    fn unknown_actions(&self) -> Vec<RuleProblem> {
        let problem = |word: &String| {
            let meant = suggestion(nearest(word, RuleAction::ALL.map(RuleAction::as_str)));
            let (calls, others): (Vec<_>, Vec<_>) =
                RuleAction::ALL.into_iter().partition(|action| action.is_call());
            let [calls, others] = [calls, others].map(|actions| {
                actions.into_iter().map(RuleAction::as_str).collect::<Vec<_>>().join(", ")
            });
            let text = format!(
                "Action::{word:?} does not exist{meant}: calls are {calls}; other actions are {others}"
            );
            self.problem_at(word, text, Basis::Text)
        };
        unknown_action_words(&self.policy).iter().map(problem).collect()
    }

    /// Problems of agents that no principal can match.
    pub(super) fn unknown_agents(&self) -> Vec<RuleProblem> {
        let named = self.policy.entity_literals();
        let agents = named.iter().filter_map(Named::of).filter(|it| it.kind == EntityKind::Agent);
        let unknown = agents.filter(|agent| !is_principal(&agent.id));
        let problem = |agent: Named| {
            let text =
                format!("Agent::{:?} matches no principal: agents are {PRINCIPALS}", agent.id);
            self.problem_at(&agent.id, text, Basis::Text)
        };
        unknown.map(problem).collect()
    }
}

/// The forms of a principal's id, for messages.
pub const PRINCIPALS: &str = "anonymous, admin, token:NAME, jwt:SUBJECT, cert:NAME";

/// Whether a principal can have this id.
pub fn is_principal(id: &str) -> bool {
    PROVEN.iter().any(|kind| id.starts_with(kind)) || matches!(id, "anonymous" | "admin")
}

fn at(
    source: &RuleSource<'_>,
    file: &Arc<str>,
    error: &DetailedError,
    basis: Basis,
) -> RuleProblem {
    let (line, column) = match error.source_locations.first() {
        Some(label) => source.place(label.loc.start),
        None => (source.line, source.column),
    };
    let mut text = in_one_line(&error.message);
    if let Some(help) = &error.help {
        text = format!("{text} ({})", in_one_line(help));
    }
    RuleProblem { file: Arc::clone(file), line, column, text, basis }
}

/// Source of one rule up to its `;`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RuleSource<'t> {
    pub(super) text: &'t str,
    /// Line of the rule, counted from 1.
    pub(super) line: usize,
    /// Column of the rule in characters, counted from 1.
    pub(super) column: usize,
}

impl RuleSource<'_> {
    /// Converts a byte offset in the rule to a line and column in the file.
    pub(super) fn place(&self, offset: usize) -> (usize, usize) {
        let before = self.text.get(..offset).unwrap_or(self.text);
        match before.rsplit_once('\n') {
            None => (self.line, self.column + before.chars().count()),
            Some((lines, last)) => {
                (self.line + 1 + lines.matches('\n').count(), 1 + last.chars().count())
            }
        }
    }
}

/// Splits a file into rules; text after the last `;` counts as one more rule. Only strings, comments and `;` are recognized. Because each
/// rule is parsed separately, a broken rule does not hide problems of others.
pub(super) fn split(text: &str) -> impl Iterator<Item = RuleSource<'_>> {
    let mut rest = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (mut line, mut column) = (1, 1);
    std::iter::from_fn(move || {
        let between = blank(rest);
        advance(rest.get(..between).unwrap_or_default(), &mut line, &mut column);
        rest = rest.get(between..).unwrap_or_default();
        if rest.is_empty() {
            return None;
        }
        let (rule, after) = rest.split_at(end(rest));
        let source = RuleSource { text: rule, line, column };
        advance(rule, &mut line, &mut column);
        rest = after;
        Some(source)
    })
}

fn advance(text: &str, line: &mut usize, column: &mut usize) {
    match text.rsplit_once('\n') {
        None => *column += text.chars().count(),
        Some((_, last)) => {
            *line += text.matches('\n').count();
            *column = 1 + last.chars().count();
        }
    }
}

/// Length of leading white space and comments.
fn blank(text: &str) -> usize {
    let mut rest = text.trim_start();
    while rest.starts_with("//") {
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
    }
    text.len() - rest.len()
}

/// End of the first rule: after its `;`, or the end of the text.
fn end(text: &str) -> usize {
    let mut bytes = text.bytes().enumerate();
    let mut last = 0;
    while let Some((at, byte)) = bytes.next() {
        match (byte, last) {
            (b';', _) => return at + 1,
            (b'"', _) => {
                while let Some((_, byte)) = bytes.next() {
                    match byte {
                        b'\\' => drop(bytes.next()),
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            (b'/', b'/') => drop(bytes.find(|(_, byte)| *byte == b'\n')),
            _ => {}
        }
        last = byte;
    }
    text.len()
}

/// Facts on which a problem depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// Only the text of the rule.
    Text,
    /// The input schemas of the known tools: the problem may not exist with another catalog.
    Catalog,
    /// A missing server or tool. The rule can be enforced: it applies once the server or tool exists.
    Name,
}

/// Problem of a rule or of a rule file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleProblem {
    pub file: Arc<str>,
    /// Line, counted from 1; 0 for the file as a whole.
    pub line: usize,
    /// Column in characters, counted from 1; 0 for the file as a whole.
    pub column: usize,
    /// Description in one line.
    pub text: String,
    pub basis: Basis,
}

impl RuleProblem {
    /// Whether the rule cannot be enforced. Anything else is a warning.
    pub fn is_error(&self) -> bool {
        self.basis != Basis::Name
    }

    /// Problem of a whole file.
    pub fn of_file(file: &Arc<str>, text: impl Into<String>) -> Self {
        Self { file: Arc::clone(file), line: 0, column: 0, text: text.into(), basis: Basis::Text }
    }
}

impl fmt::Display for RuleProblem {
    /// Formats as `file:line:column: text`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.text),
            line => write!(f, "{}:{line}:{}: {}", self.file, self.column, self.text),
        }
    }
}

impl std::error::Error for RuleProblem {}

/// Maximum number of arguments of unknown type that are tried in all combinations; if there are more, all of them share
/// one type.
const MAX_COMBINED: u32 = 3;
/// Maximum number of cached validators, one per set of arguments.
const MAX_VALIDATORS: usize = 256;

/// Known servers, tools and agent tokens.
#[derive(Clone, Debug, Default)]
pub struct KnownTools {
    /// Configured servers; `None` if their tools are not known yet.
    pub servers: BTreeMap<Arc<str>, Option<Vec<Arc<Tool>>>>,
    /// Names of agent tokens; empty if agents are not checked.
    pub tokens: Vec<Box<str>>,
}

/// A problem found by Cedar's validator.
struct TypeProblem {
    problem: RuleProblem,
    /// Whether the expression at fault reads an argument.
    about_arguments: bool,
}

/// Checks rules one by one.
pub(super) struct Checker<'k> {
    known: Option<&'k KnownTools>,
    /// Budget of the search for similar names.
    effort: Effort,
    /// Input schemas by tool.
    schemas: HashMap<*const Tool, Value>,
    /// Validators by schema.
    validators: HashMap<String, Validator>,
}

impl<'k> Checker<'k> {
    /// Creates a checker for these tools; with `None`, rules are checked only against Cedar's types.
    pub(super) fn new(known: Option<&'k KnownTools>) -> Self {
        let effort = Effort::default();
        Self { known, effort, schemas: HashMap::new(), validators: HashMap::new() }
    }

    pub(super) fn problems(&mut self, rule: &ParsedRule) -> Vec<RuleProblem> {
        let mut found = rule.unknown_agents();
        found.extend(rule.unknown_actions());
        found.extend(self.missing(rule));
        found.extend(self.types(rule));
        found
    }

    /// Problems of named servers and tools that do not exist, and of tokens that do not exist but resemble one: others may be
    /// created later.
    fn missing(&mut self, rule: &ParsedRule) -> Vec<RuleProblem> {
        let Some(known) = self.known else { return Vec::new() };
        let mut found = Vec::new();
        for named in rule.policy.entity_literals().iter().filter_map(Named::of) {
            let (server, own) = match named.kind {
                EntityKind::Group => continue,
                EntityKind::Agent => {
                    found.extend(self.misspelled_token(rule, &named, &known.tokens));
                    continue;
                }
                EntityKind::Server => (&*named.id, None),
                EntityKind::Tool | EntityKind::Resource | EntityKind::Prompt => {
                    match named.id.split_once(':') {
                        Some((server, own)) => (server, Some(own)),
                        None => ("", None),
                    }
                }
            };
            let (kind, effort) = (named.kind.as_str(), &mut self.effort);
            let (why, basis) = match known.servers.get(server) {
                None if server.is_empty() => ("write \"server:name\"".to_owned(), Basis::Text),
                None => {
                    let names = known.servers.keys().map(|name| &**name);
                    let meant = suggestion(nearest_within(effort, server, names));
                    (format!("there is no such server{meant}"), Basis::Name)
                }
                Some(Some(tools)) if named.kind == EntityKind::Tool => {
                    let names = tools.iter().map(|tool| &*tool.name.tool);
                    let own = own.unwrap_or_default();
                    if names.clone().any(|name| name == own) {
                        continue;
                    }
                    let meant = suggestion(nearest_within(effort, own, names));
                    (format!("the server has no such tool{meant}"), Basis::Name)
                }
                Some(_) => continue,
            };
            let text = format!("{kind}::{:?} can never be met: {why}", named.id);
            found.push(rule.problem_at(&named.id, text, basis));
        }
        found
    }

    /// Problem of an agent whose name is similar to that of a token.
    fn misspelled_token(
        &mut self,
        rule: &ParsedRule,
        agent: &Named,
        tokens: &[Box<str>],
    ) -> Option<RuleProblem> {
        let name = agent.id.strip_prefix("token:")?;
        let names = tokens.iter().map(|token| &**token);
        let is_known = names.clone().any(|token| token == name);
        let meant = nearest_within(&mut self.effort, name, names).filter(|_| !is_known)?;
        let text =
            format!("Agent::{:?} matches no token: did you mean \"token:{meant}\"?", agent.id);
        Some(rule.problem_at(&agent.id, text, Basis::Name))
    }

    /// Type errors, and rules that can never hold.
    fn types(&mut self, rule: &ParsedRule) -> Vec<RuleProblem> {
        let none = Wanted::default();
        let wanted = rule.needs.args.as_ref().unwrap_or(&none);
        let (tools, completeness) = self.tools_of(rule);
        for tool in &tools {
            self.schemas.entry(Arc::as_ptr(tool)).or_insert_with(|| {
                serde_json::from_str(tool.input_schema.get()).unwrap_or_default()
            });
        }
        let schemas: Vec<&Value> =
            tools.iter().filter_map(|tool| self.schemas.get(&Arc::as_ptr(tool))).collect();
        let members = needs::members(wanted, &schemas, completeness);
        self.guessed(rule, wanted, &members, completeness)
    }

    /// Problems that occur for every possible type of the unknown arguments. If a tool is unknown, so are all its arguments, and problems
    /// with them are not reported.
    fn guessed(
        &mut self,
        rule: &ParsedRule,
        wanted: &Wanted,
        members: &InputMembers,
        completeness: Completeness,
    ) -> Vec<RuleProblem> {
        let unknown = u32::try_from(needs::unknown(members, wanted)).unwrap_or(u32::MAX);
        let combinations = match unknown {
            0 => 1,
            1..=MAX_COMBINED => GUESSES.len().pow(unknown),
            _ => GUESSES.len(),
        };
        // Only argument types depend on tools.
        let basis = if rule.needs.args.is_some() { Basis::Catalog } else { Basis::Text };
        let mut common: Option<Vec<RuleProblem>> = None;
        for combination in 0..combinations {
            let mut rest = combination;
            let mut guesses = std::iter::from_fn(|| {
                let guess = GUESSES.get(rest % GUESSES.len()).copied();
                if unknown <= MAX_COMBINED {
                    rest /= GUESSES.len();
                }
                guess
            });
            let args = needs::written(members, wanted, &mut guesses);
            let mut found = self.validated(rule, &args, basis);
            if completeness == Completeness::Some {
                found.retain(|problem| !problem.about_arguments);
            }
            if found.is_empty() {
                return Vec::new();
            }
            let found: Vec<_> = found.into_iter().map(|found| found.problem).collect();
            match &mut common {
                None => common = Some(found),
                // Several arguments share each guess but may need different types. A problem is kept only if every
                // guess has a problem at its position.
                Some(common) if unknown > MAX_COMBINED => {
                    let again = |problem: &RuleProblem| {
                        let place = (problem.line, problem.column);
                        found.iter().any(|found| (found.line, found.column) == place)
                    };
                    common.retain(again);
                }
                Some(_) => {}
            }
        }
        common.unwrap_or_default()
    }

    /// Tools to which the rule may apply, and whether all are known.
    fn tools_of(&self, rule: &ParsedRule) -> (Vec<&'k Arc<Tool>>, Completeness) {
        let Some(known) = self.known else { return (Vec::new(), Completeness::Some) };
        let mut completeness = Completeness::All;
        let mut found = Vec::new();
        for (server, tools) in &known.servers {
            match tools {
                Some(tools) => {
                    let met = |tool: &&Arc<Tool>| rule.scope.fits_tool(RuleTarget::Tool(tool));
                    found.extend(tools.iter().filter(met));
                }
                None if rule.scope.may_fit_server(server) => completeness = Completeness::Some,
                None => {}
            }
        }
        // If no tool is known, no argument counts as missing.
        let nothing = found.is_empty();
        (found, if nothing { Completeness::Some } else { completeness })
    }

    fn validated(&mut self, rule: &ParsedRule, args: &str, basis: Basis) -> Vec<TypeProblem> {
        let wrong = |text| {
            let problem = rule.problem_at("", text, basis);
            vec![TypeProblem { problem, about_arguments: false }]
        };
        let schema_text = schema(args, rule.calls_only);
        if !self.validators.contains_key(&schema_text) {
            let schema = match Schema::from_cedarschema_str(&schema_text) {
                Ok((schema, _)) => schema,
                Err(error) => {
                    let text = format!(
                        "the arguments that the condition reads cannot be described: {}",
                        in_one_line(&error.to_string())
                    );
                    return wrong(text);
                }
            };
            if self.validators.len() >= MAX_VALIDATORS {
                self.validators.clear();
            }
            self.validators.insert(schema_text.clone(), Validator::new(schema));
        }
        let Some(validator) = self.validators.get(&schema_text) else { return Vec::new() };
        let mut set = PolicySet::new();
        if let Err(error) = set.add(rule.policy.clone()) {
            return wrong(in_one_line(&error.to_string()));
        }
        let result = validator.validate(&set, ValidationMode::Strict);
        let unknown = unknown_action_words(&rule.policy);
        // Unknown actions are reported by name elsewhere, actions of another type here.
        let is_reported = |error: &ValidationError| {
            let text = error.to_string();
            matches!(error, ValidationError::UnrecognizedActionId(_))
                && unknown.iter().any(|word| text.contains(&format!("`Action::{word:?}`")))
        };
        let errors = result.validation_errors().filter(|error| !is_reported(error));
        let errors = errors.map(|error| {
            let error = DetailedError::from(error);
            let about_arguments = rule.is_about_arguments(&error);
            TypeProblem { problem: rule.problem(&error, basis), about_arguments }
        });
        let impossible = result.validation_warnings().filter(|warning| match warning {
            ValidationWarning::ImpossiblePolicy(_)
            | ValidationWarning::InvalidActionApplication(_) => true,
            // Unusual letters are the operator's choice.
            ValidationWarning::MixedScriptString(_)
            | ValidationWarning::BidiCharsInString(_)
            | ValidationWarning::BidiCharsInIdentifier(_)
            | ValidationWarning::MixedScriptIdentifier(_)
            | ValidationWarning::ConfusableIdentifier(_)
            | _ => false,
        });
        let mut found: Vec<_> = errors.collect();
        if found.is_empty() && unknown.is_empty() {
            found.extend(impossible.map(|warning| {
                let mut problem = rule.problem(&DetailedError::from(warning), basis);
                problem.text = format!("the rule can never match: {}", problem.text);
                TypeProblem { problem, about_arguments: false }
            }));
        }
        for TypeProblem { problem, .. } in &mut found {
            problem.text = without_id(&problem.text, rule);
        }
        once_for_all_actions(&mut found);
        found
    }
}

/// Names of actions that do not exist.
fn unknown_action_words(policy: &Policy) -> Vec<String> {
    let named = policy.entity_literals();
    let actions = named.iter().filter(|uid| uid.type_name().to_string() == "Action");
    let words = actions.map(|uid| AsRef::<str>::as_ref(uid.id()).to_owned());
    words.filter(|word| RuleAction::from_word(word).is_none()).collect()
}

/// Suffix of a problem that suggests the name that was probably meant.
fn suggestion(meant: Option<&str>) -> String {
    meant.map(|name| format!(" (did you mean {name:?}?)")).unwrap_or_default()
}

/// Merges problems at one position that differ only by the action and the suggested name. The more similar name stays.
fn once_for_all_actions(found: &mut Vec<TypeProblem>) {
    let without_action = |text: &str| {
        let (before, rest) = text.split_once(" for Action::\"")?;
        let (_, after) = rest.split_once('"')?;
        Some(format!("{before}{after}"))
    };
    let mut merged: Vec<TypeProblem> = Vec::with_capacity(found.len());
    for next in found.drain(..) {
        let place = (next.problem.line, next.problem.column);
        let (text, meant) = without_suggestion(&next.problem.text);
        let general = without_action(text);
        let same = merged.iter_mut().find(|it| {
            let (text, _) = without_suggestion(&it.problem.text);
            let is_same = general.as_ref().is_some_and(|general| {
                general == text || without_action(text).as_ref() == Some(general)
            });
            (it.problem.line, it.problem.column) == place && is_same
        });
        match (same, general) {
            (Some(same), Some(general)) => {
                let (_, other) = without_suggestion(&same.problem.text);
                let wrong = general.split('`').nth(1).unwrap_or_default();
                let meant = nearest(wrong, [other, meant].into_iter().flatten()).or(other);
                let suggestion = meant.map(|name| format!("{SUGGESTED}{name}{SUGGESTED_END}"));
                same.problem.text = general + &suggestion.unwrap_or_default();
            }
            (Some(_) | None, _) => merged.push(next),
        }
    }
    *found = merged;
}

/// Surroundings of a name that Cedar suggests.
const SUGGESTED: &str = " (did you mean `";
const SUGGESTED_END: &str = "`?)";

/// The text of a problem without the name that Cedar suggests, and that name.
fn without_suggestion(text: &str) -> (&str, Option<&str>) {
    let parts = text.strip_suffix(SUGGESTED_END).and_then(|text| text.rsplit_once(SUGGESTED));
    parts.map_or((text, None), |(text, meant)| (text, Some(meant)))
}

/// Removes the rule id from Cedar's messages, because the position is already reported.
fn without_id(text: &str, rule: &ParsedRule) -> String {
    let id = rule.policy.id();
    text.replace(&format!("for policy `{id}`, "), "")
}

/// Cedar schema of all entities and actions; `args` is the type of a call's arguments. With `calls_only`, the other actions do not apply to
/// anything.
fn schema(args: &str, calls_only: bool) -> String {
    const INTENT: &str = "{operation_type: String, data_sensitivity: String, reason: String}";
    const CAPABILITY: &str = "{side_effect: String, parallel_safe: Bool, approval: String, \
                              idempotent: Bool, open_world: Bool}";
    const BEFORE: &str = "carries_out: Bool, \
                          session: {max_sensitivity: String, open_world_seen: Bool, calls: Long}";
    let all = "client: String, now: datetime";
    let others = match calls_only {
        true => "action list; action read_resource; action get_prompt;\n".to_owned(),
        false => format!(
            "action list appliesTo {{ principal: [Agent], resource: [Tool, Resource, Prompt], context: {{ {all} }} }};\n\
             action read_resource appliesTo {{ principal: [Agent], resource: [Resource], context: {{\
               {BEFORE}, {all} }} }};\n\
             action get_prompt appliesTo {{ principal: [Agent], resource: [Prompt], context: {{\
               {BEFORE}, {all} }} }};\n"
        ),
    };
    format!(
        "entity Group; entity Server; entity Agent in [Group]; entity Tool in [Server];\n\
         entity Resource in [Server]; entity Prompt in [Server];\n\
         action read, write, destructive appliesTo {{ principal: [Agent], resource: [Tool], context: {{\
           args: {args}, intent: {INTENT}, capability: {CAPABILITY}, {BEFORE}, {all} }} }};\n\
         {others}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_rules_have_their_positions() {
        let text = "// first; not a rule\npermit(a, \"x;\\\"y\"); forbid\n // here; too\n (b);\n\n  half \"é";
        let found: Vec<_> = split(text).map(|it| (it.text, it.line, it.column)).collect();
        assert_eq!(
            found,
            [
                ("permit(a, \"x;\\\"y\");", 2, 1),
                ("forbid\n // here; too\n (b);", 2, 21),
                ("half \"é", 6, 3),
            ]
        );
        assert_eq!(split(" // nothing\n").count(), 0);
        assert_eq!(split("//").count(), 0);
    }

    #[test]
    fn position_within_a_rule_is_that_of_the_file() {
        let text = "permit(a);  permit(\n é b\n);";
        let rule = split(text).nth(1).unwrap();
        assert_eq!((rule.place(0), rule.place(7)), ((1, 13), (1, 20)));
        assert_eq!(rule.place(rule.text.find('b').unwrap()), (2, 4));
        assert_eq!(rule.place(1000), rule.place(rule.text.len()));
    }
}
