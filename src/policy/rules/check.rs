//! Rules against what exists: Cedar's types, the tools of the catalog, and what their input schemas say.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cedar_policy::ffi::DetailedError;
use cedar_policy::{PolicySet, Schema, ValidationMode, ValidationWarning, Validator};
use serde_json::Value;

use super::entities::{EntityKind, Named};
use super::input_types::{self, Completeness, GUESSES, InputMembers};
use super::needs::Wanted;
use super::parsed::ParsedRule;
use super::problem::{Basis, RuleProblem, in_one_line};
use super::request::RuleTarget;
use crate::tool::Tool;

/// Arguments of unknown type in one rule that are tried in all combinations; more of them are of one type together.
const MAX_COMBINED: u32 = 3;
/// Validators that are kept, one for each set of arguments that rules ask for.
const MAX_VALIDATORS: usize = 256;

/// What is there to be called, as far as it is known.
#[derive(Clone, Debug, Default)]
pub struct KnownTools {
    /// The configured servers; `None` for one whose tools are not known yet.
    pub servers: BTreeMap<Arc<str>, Option<Vec<Arc<Tool>>>>,
}

/// Checks rules, one after the other.
pub(super) struct Checker<'k> {
    known: Option<&'k KnownTools>,
    /// Input schemas, by the tool they are of.
    schemas: HashMap<*const Tool, Value>,
    /// By the type of `context.args`.
    validators: HashMap<String, Validator>,
}

impl<'k> Checker<'k> {
    /// Against these tools; `None`: against Cedar's types alone.
    pub(super) fn new(known: Option<&'k KnownTools>) -> Self {
        Self { known, schemas: HashMap::new(), validators: HashMap::new() }
    }

    /// What is wrong with a rule.
    pub(super) fn problems(&mut self, rule: &ParsedRule) -> Vec<RuleProblem> {
        let mut found = rule.strangers();
        found.extend(self.missing(rule));
        if found.is_empty() {
            found = self.types(rule);
        }
        found
    }

    /// Servers and tools that the rule names and that are not there.
    fn missing(&self, rule: &ParsedRule) -> Vec<RuleProblem> {
        let Some(known) = self.known else { return Vec::new() };
        let mut found = Vec::new();
        for named in rule.policy.entity_literals().iter().filter_map(Named::of) {
            let (server, own) = match named.kind {
                EntityKind::Agent | EntityKind::Group => continue,
                EntityKind::Server => (&*named.id, None),
                EntityKind::Tool | EntityKind::Resource | EntityKind::Prompt => {
                    match named.id.split_once(':') {
                        Some((server, own)) => (server, Some(own)),
                        None => ("", None),
                    }
                }
            };
            let kind = named.kind.as_str();
            let text = match known.servers.get(server) {
                None if server.is_empty() => {
                    format!("{kind}::{:?} can never be met: write \"server:name\"", named.id)
                }
                None => format!("{kind}::{:?} can never be met: there is no such server", named.id),
                Some(Some(tools)) if named.kind == EntityKind::Tool => {
                    if tools.iter().any(|tool| Some(&*tool.name.tool) == own) {
                        continue;
                    }
                    format!("{kind}::{:?} can never be met: the server has no such tool", named.id)
                }
                Some(_) => continue,
            };
            found.push(rule.problem_at(&named.id, text, Basis::Catalog));
        }
        found
    }

    /// Type errors, and rules that cannot hold.
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
        let mut members = input_types::members(wanted, &schemas, completeness);
        let mut found = self.guessed(rule, wanted, &members);
        if completeness == Completeness::Some && !found.is_empty() {
            // A tool that is not known yet may require all of them.
            input_types::require(&mut members);
            let again = self.guessed(rule, wanted, &members);
            if again.is_empty() {
                found = again;
            }
        }
        found
    }

    /// What is wrong whatever the arguments of unknown type are.
    fn guessed(
        &mut self,
        rule: &ParsedRule,
        wanted: &Wanted,
        members: &InputMembers,
    ) -> Vec<RuleProblem> {
        let unknown = u32::try_from(input_types::unknown(members, wanted)).unwrap_or(u32::MAX);
        let combinations = match unknown {
            0 => 1,
            1..=MAX_COMBINED => GUESSES.len().pow(unknown),
            _ => GUESSES.len(),
        };
        // Only what is read of arguments depends on tools.
        let basis = if rule.needs.args.is_some() { Basis::Catalog } else { Basis::Text };
        let mut first = Vec::new();
        for combination in 0..combinations {
            let mut rest = combination;
            let mut guesses = std::iter::from_fn(|| {
                let guess = GUESSES.get(rest % GUESSES.len()).copied();
                if unknown <= MAX_COMBINED {
                    rest /= GUESSES.len();
                }
                guess
            });
            let args = input_types::written(members, wanted, &mut guesses);
            let found = self.validated(rule, &args, basis);
            if found.is_empty() {
                return Vec::new();
            }
            if combination == 0 {
                first = found;
            }
        }
        first
    }

    /// The tools that the rule can meet, and whether these are all.
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
        // Without a tool there is nothing that an argument could be missing in.
        let nothing = found.is_empty();
        (found, if nothing { Completeness::Some } else { completeness })
    }

    fn validated(&mut self, rule: &ParsedRule, args: &str, basis: Basis) -> Vec<RuleProblem> {
        if !self.validators.contains_key(args) {
            let schema = match Schema::from_cedarschema_str(&schema(args)) {
                Ok((schema, _)) => schema,
                Err(error) => {
                    let text = format!(
                        "the arguments that it asks for cannot be described: {}",
                        in_one_line(&error.to_string())
                    );
                    return vec![rule.problem_at("", text, basis)];
                }
            };
            if self.validators.len() >= MAX_VALIDATORS {
                self.validators.clear();
            }
            self.validators.insert(args.to_owned(), Validator::new(schema));
        }
        let Some(validator) = self.validators.get(args) else { return Vec::new() };
        let mut set = PolicySet::new();
        if let Err(error) = set.add(rule.policy.clone()) {
            return vec![rule.problem_at("", in_one_line(&error.to_string()), Basis::Text)];
        }
        let result = validator.validate(&set, ValidationMode::Strict);
        let errors = result
            .validation_errors()
            .map(|error| rule.problem(&DetailedError::from(error), basis));
        let impossible = result.validation_warnings().filter(|warning| match warning {
            ValidationWarning::ImpossiblePolicy(_)
            | ValidationWarning::InvalidActionApplication(_) => true,
            // Odd letters are the operator's own.
            ValidationWarning::MixedScriptString(_)
            | ValidationWarning::BidiCharsInString(_)
            | ValidationWarning::BidiCharsInIdentifier(_)
            | ValidationWarning::MixedScriptIdentifier(_)
            | ValidationWarning::ConfusableIdentifier(_)
            | _ => false,
        });
        let mut found: Vec<_> = errors.collect();
        if found.is_empty() {
            found.extend(impossible.map(|warning| {
                let mut problem = rule.problem(&DetailedError::from(warning), basis);
                problem.text = format!("the rule can never match: {}", problem.text);
                problem
            }));
        }
        for problem in &mut found {
            problem.text = without_id(&problem.text, rule);
        }
        found
    }
}

/// Cedar begins its messages with the id of the rule, which has its place already.
fn without_id(text: &str, rule: &ParsedRule) -> String {
    let id = rule.policy.id();
    text.replace(&format!("for policy `{id}`, "), "")
}

/// What there is, in Cedar's schema language; `args` is the type of a call's arguments.
fn schema(args: &str) -> String {
    const INTENT: &str = "{operation_type: String, data_sensitivity: String, reason: String}";
    const CAPABILITY: &str = "{side_effect: String, parallel_safe: Bool, approval: String, \
                              idempotent: Bool, open_world: Bool}";
    const SESSION: &str = "{max_sensitivity: String, open_world_seen: Bool, calls: Long}";
    let all = "client: String, now: datetime";
    format!(
        "entity Group; entity Server; entity Agent in [Group]; entity Tool in [Server];\n\
         entity Resource in [Server]; entity Prompt in [Server];\n\
         action read, write, destructive appliesTo {{ principal: [Agent], resource: [Tool], context: {{\
           args: {args}, intent: {INTENT}, capability: {CAPABILITY}, session: {SESSION}, {all} }} }};\n\
         action list appliesTo {{ principal: [Agent], resource: [Tool, Resource, Prompt], context: {{ {all} }} }};\n\
         action read_resource appliesTo {{ principal: [Agent], resource: [Resource], context: {{\
           session: {SESSION}, {all} }} }};\n\
         action get_prompt appliesTo {{ principal: [Agent], resource: [Prompt], context: {{\
           session: {SESSION}, {all} }} }};\n"
    )
}
