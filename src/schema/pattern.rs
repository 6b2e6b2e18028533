//! Patterns, matched in bounded time.
//!
//! Most are a prefix, or a small automaton that is walked here: an engine that could do more costs
//! more to start than a short string takes. Linear ones whose automaton does not stay small pay for
//! all its states at each byte. Of those with look-around or back-references most only look ahead
//! from the start of the string, and are taken apart into linear ones; the rest goes to a
//! backtracking engine that gives up after [`BACKTRACK_MAX`]. Those that are not quick pay for the
//! worst they could do before they start.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;

use jsonschema::json::Node;
use jsonschema::{Keyword, PatternOptions, ValidationError, Validator};
use parking_lot::Mutex;
use regex_automata::Input;
use regex_automata::dfa::{Automaton as _, StartKind, dense};
use regex_automata::nfa::thompson::{self, NFA};
use regex_automata::util::primitives::StateID;
use serde_json::{Value, json};

use super::meter::{BACKTRACK_MAX, backtracking_steps};
use super::tape_json::{TapeJson, TapeNode};

/// Compiled size of one regular expression, in bytes.
pub(super) const PROGRAM_MAX: usize = 1 << 20;

/// Visits to a name in the time in which the backtracking engine starts.
const VISITS_TO_START: u64 = 6;

/// Bytes that a pattern's deterministic automaton may take, and as many while it is made, for the
/// pattern to be quick: the engine has room for a few times as much, and needs no other then.
const AUTOMATON_MAX: usize = PROGRAM_MAX / 4;

/// Bytes that an automaton may take to be kept and walked here.
const WALKED_MAX: usize = 16 << 10;

/// States that are simulated in the time of a step.
const STATES_PER_STEP: u64 = 2;

/// Steps that each byte of text costs at worst under a linear `pattern`; none when it is quick.
pub(super) fn steps_per_byte(pattern: &str) -> u64 {
    let Ok(translated) = jsonschema_regex::to_rust_regex(pattern) else { return 0 };
    let Some(nfa) = states(&translated) else { return PROGRAM_MAX as u64 };
    match automaton(&nfa, AUTOMATON_MAX) {
        Some(_) => 0,
        None => (nfa.states().len() as u64).div_ceil(STATES_PER_STEP),
    }
}

fn states(translated: &str) -> Option<NFA> {
    let limit = thompson::Config::new().nfa_size_limit(Some(PROGRAM_MAX));
    thompson::Compiler::new().configure(limit).build(translated).ok()
}

/// The deterministic automaton that finds a match anywhere, if it takes no more than `size`
/// bytes, and making it as many.
fn automaton(nfa: &NFA, size: usize) -> Option<dense::DFA<Vec<u32>>> {
    let config = dense::Config::new()
        .dfa_size_limit(Some(size))
        .determinize_size_limit(Some(size))
        .start_kind(StartKind::Unanchored)
        .accelerate(false);
    dense::Builder::new().configure(config).build_from_nfa(nfa).ok()
}

/// What a pattern that is taken apart costs for each name.
pub(super) struct Apart {
    /// Visits, to start the engine and each of the parts.
    pub(super) visits: u64,
    /// Steps for each byte of the name, where not all parts are quick.
    pub(super) steps_per_byte: u64,
}

/// What `pattern` costs where the backtracking engine runs it against names, if that needs no
/// backtracking: it hands each part of what [`split`] takes apart to a linear engine, and is held
/// by `^` to the start of the name. None for other patterns.
pub(super) fn apart(pattern: &str) -> Option<Apart> {
    let parts = split(pattern)?;
    let linear = |part: &str| is_linear(part, PROGRAM_MAX);
    if !parts.iter().all(|(_, part)| linear(part)) {
        return None;
    }
    // Where groups are captured no automaton is walked, but states simulated.
    let steps = |part: &str| match capturing(part) {
        true => match jsonschema_regex::to_rust_regex(part).ok().and_then(|text| states(&text)) {
            Some(nfa) => (nfa.states().len() as u64).div_ceil(STATES_PER_STEP),
            None => PROGRAM_MAX as u64,
        },
        false => steps_per_byte(part),
    };
    Some(Apart {
        visits: VISITS_TO_START + parts.len() as u64,
        steps_per_byte: parts.iter().map(|(_, part)| steps(part)).sum(),
    })
}

/// True when `pattern` has a group that captures.
fn capturing(pattern: &str) -> bool {
    outside_classes(pattern).any(|(at, byte)| {
        let group = pattern.get(at + 1..).unwrap_or_default();
        byte == b'(' && (!group.starts_with('?') || group.starts_with("?<"))
    })
}

/// `pattern`, taken apart.
pub(super) struct CompiledPattern {
    /// What has to match, or must not.
    parts: Vec<Part>,
}

struct Part {
    expected: bool,
    engine: Engine,
}

enum Engine {
    /// `^` and literal text.
    Prefix(Box<str>),
    /// A small automaton, and where it starts.
    Walked(Box<dense::DFA<Vec<u32>>>, StateID),
    Linear {
        validator: Validator<TapeJson>,
        steps_per_byte: u64,
    },
    Backtracking(Validator<TapeJson>),
}

/// A schema's patterns, each built once however often it stands there.
#[derive(Clone, Default)]
pub(super) struct PatternCache(Arc<Mutex<HashMap<String, Arc<CompiledPattern>>>>);

impl PatternCache {
    /// What jsonschema calls for each `pattern` of the schema.
    pub(super) fn keyword<'a>(
        &self,
        value: &'a Value,
    ) -> Result<Box<dyn for<'i> Keyword<'i, TapeJson>>, ValidationError<'a>> {
        let text = value.as_str().ok_or_else(|| ValidationError::custom("pattern is no string"))?;
        let mut built = self.0.lock();
        if let Some(known) = built.get(text) {
            return Ok(Box::new(Arc::clone(known)));
        }
        let pattern = Arc::new(CompiledPattern::new(text)?);
        built.insert(text.to_owned(), Arc::clone(&pattern));
        Ok(Box::new(pattern))
    }
}

impl CompiledPattern {
    fn new(pattern: &str) -> Result<Self, ValidationError<'static>> {
        let split = split(pattern).map(|parts| {
            let part = |(expected, part): &(bool, String)| {
                linear(part).map(|engine| Part { expected: *expected, engine })
            };
            parts.iter().map(part).collect::<Result<Vec<_>, ValidationError<'static>>>()
        });
        let parts = match split {
            Some(Ok(parts)) => parts,
            Some(Err(_)) | None => {
                let engine = linear(pattern).or_else(|_| backtracking(pattern))?;
                vec![Part { expected: true, engine }]
            }
        };
        Ok(Self { parts })
    }
}

impl<'i> Keyword<'i, TapeJson> for Arc<CompiledPattern> {
    fn validate(&self, instance: TapeNode<'i>) -> Result<(), ValidationError<'i>> {
        if self.is_valid(instance) { Ok(()) } else { Err(ValidationError::custom("no match")) }
    }

    fn is_valid(&self, instance: TapeNode<'i>) -> bool {
        let Some(text) = instance.as_string() else { return true };
        self.parts.iter().all(|part| part.engine.matches(instance, &text) == Some(part.expected))
    }
}

impl Engine {
    /// Whether `text`, which is what stands at `instance`, matches; none when the steps are used
    /// up.
    fn matches(&self, instance: TapeNode<'_>, text: &str) -> Option<bool> {
        let meter = instance.meter();
        match self {
            Self::Prefix(prefix) => Some(text.starts_with(&**prefix)),
            Self::Walked(automaton, start) => Some(walk(automaton, *start, text)),
            Self::Linear { validator, steps_per_byte } => {
                let paid = meter.spend(steps_per_byte.saturating_mul(text.len() as u64));
                paid.then(|| validator.is_valid(instance))
            }
            Self::Backtracking(validator) => {
                if !meter.spend(backtracking_steps(text.len())) {
                    return None;
                }
                match validator.validate(instance) {
                    Ok(()) => Some(true),
                    Err(error) => {
                        use jsonschema::error::ValidationErrorKind::Pattern;
                        if matches!(error.kind(), Pattern { .. }) {
                            return Some(false);
                        }
                        // An error that is not about the text is about the engine, which gave up.
                        meter.exhaust();
                        None
                    }
                }
            }
        }
    }
}

/// Whether `automaton` finds a match in `text`. It knows of one a byte later.
fn walk(automaton: &dense::DFA<Vec<u32>>, start: StateID, text: &str) -> bool {
    let mut state = start;
    for byte in text.bytes() {
        state = automaton.next_state(state, byte);
        if automaton.is_special_state(state) {
            if automaton.is_match_state(state) {
                return true;
            }
            if automaton.is_dead_state(state) {
                return false;
            }
        }
    }
    automaton.is_match_state(automaton.next_eoi_state(state))
}

fn linear(pattern: &str) -> Result<Engine, ValidationError<'static>> {
    if let Some(prefix) = prefix(pattern) {
        return Ok(Engine::Prefix(prefix.into()));
    }
    if let Some(walked) = walked(pattern) {
        return Ok(walked);
    }
    let options = PatternOptions::regex().size_limit(PROGRAM_MAX).dfa_size_limit(PROGRAM_MAX);
    let options = jsonschema::options_for::<TapeJson>().with_pattern_options(options);
    let validator = options.build(&json!({ "pattern": pattern }))?;
    Ok(Engine::Linear { validator, steps_per_byte: steps_per_byte(pattern) })
}

/// What follows `^` if it is ASCII that stands for itself.
fn prefix(pattern: &str) -> Option<&str> {
    let rest = pattern.strip_prefix('^')?;
    let itself = |byte: u8| byte.is_ascii() && !br"\^$.|?*+()[]{}".contains(&byte);
    rest.bytes().all(itself).then_some(rest)
}

fn walked(pattern: &str) -> Option<Engine> {
    let translated = jsonschema_regex::to_rust_regex(pattern).ok()?;
    let nfa = states(&translated)?;
    // Within a character nothing matches, not even nothing: the walk goes by bytes.
    if nfa.has_empty() && nfa.look_set_any().contains_word() {
        return None;
    }
    let automaton = automaton(&nfa, WALKED_MAX)?;
    let start = automaton.start_state_forward(&Input::new("")).ok()?;
    Some(Engine::Walked(Box::new(automaton), start))
}

fn backtracking(pattern: &str) -> Result<Engine, ValidationError<'static>> {
    let options = PatternOptions::fancy_regex().backtrack_limit(BACKTRACK_MAX);
    let options = options.size_limit(PROGRAM_MAX).dfa_size_limit(PROGRAM_MAX);
    let options = jsonschema::options_for::<TapeJson>().with_pattern_options(options);
    Ok(Engine::Backtracking(options.build(&json!({ "pattern": pattern }))?))
}

/// Takes `^(?=A)(?!B)…R` apart into `^A`, not `^B`, … and `^R`; none when the pattern is of
/// another form.
fn split(pattern: &str) -> Option<Vec<(bool, String)>> {
    let mut rest = pattern.strip_prefix('^')?;
    let mut parts = Vec::new();
    loop {
        let (expected, ahead) = match (rest.strip_prefix("(?="), rest.strip_prefix("(?!")) {
            (Some(ahead), _) => (true, ahead),
            (None, Some(ahead)) => (false, ahead),
            (None, None) => break,
        };
        let end = closing(ahead)?;
        parts.push((expected, format!("^(?:{})", ahead.get(..end)?)));
        rest = ahead.get(end + 1..)?;
    }
    if parts.is_empty() || rest.starts_with(['*', '+', '?', '{']) || has_alternatives(rest) {
        return None;
    }
    parts.push((true, format!("^{rest}")));
    Some(parts)
}

/// Where the group closes that opened before `text`.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    outside_classes(text).find_map(|(at, byte)| match byte {
        b'(' => {
            depth += 1;
            None
        }
        b')' if depth == 0 => Some(at),
        b')' => {
            depth -= 1;
            None
        }
        _ => None,
    })
}

fn has_alternatives(text: &str) -> bool {
    let mut depth = 0_i32;
    outside_classes(text).any(|(_, byte)| {
        depth += match byte {
            b'(' => 1,
            b')' => -1,
            _ => 0,
        };
        byte == b'|' && depth == 0
    })
}

/// The bytes that are neither escaped nor in a character class.
fn outside_classes(text: &str) -> impl Iterator<Item = (usize, u8)> + '_ {
    let mut escaped = false;
    let mut class = false;
    text.bytes().enumerate().filter(move |(_, byte)| {
        if std::mem::take(&mut escaped) {
            return false;
        }
        match byte {
            b'\\' => escaped = true,
            b'[' => class = true,
            b']' if class => class = false,
            _ => return !class,
        }
        false
    })
}

/// True when `pattern` compiles for the linear engine within `size` bytes.
pub(super) fn is_linear(pattern: &str, size: usize) -> bool {
    let options = PatternOptions::regex().size_limit(size).dfa_size_limit(size);
    builds(&jsonschema::options().with_pattern_options(options).build(&as_name(pattern)))
}

/// True when `pattern` compiles for the backtracking engine within `size` bytes.
pub(super) fn is_backtracking(pattern: &str, size: usize) -> bool {
    let options = PatternOptions::fancy_regex().size_limit(size).dfa_size_limit(size);
    builds(&jsonschema::options().with_pattern_options(options).build(&as_name(pattern)))
}

/// A schema that has `pattern` where no meta-schema checks it.
pub(super) fn as_name(pattern: &str) -> Value {
    json!({ "patternProperties": { pattern: true } })
}

fn builds<T, E: Display>(built: &Result<T, E>) -> bool {
    built.is_ok()
}

#[cfg(test)]
mod tests {
    use super::super::meter::Meter;
    use super::super::tape_json::MeteredDocument;
    use super::*;
    use crate::json::tape::lone_string;

    #[test]
    fn a_pattern_is_quick_where_its_automaton_stays_small() {
        for quick in [
            "^[a-z][a-z0-9-]*$",
            r"^\d{4}-\d{2}-\d{2}T",
            "^(a+)+$",
            r"^(\w+\s?)+$",
            r"^[^@]+@[^@]+\.[a-z]{2,}$",
            "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
            "^.{1,200}$",
            "[A-Za-z0-9+/]{100,}",
            r"\p{Lu}\p{L}*",
        ] {
            assert_eq!(steps_per_byte(quick), 0, "{quick}");
        }
        for slow in ["a[ab]{100}c", "(a[ab]{1,400}b){3}c", "(.*a){20}[ab]{20}c"] {
            assert!(steps_per_byte(slow) > 50, "{slow}");
        }
    }

    #[test]
    fn a_prefix_and_a_walk_find_what_the_engine_finds() {
        let texts = [
            "",
            "a",
            "b",
            "ab",
            "ba",
            "abc",
            "aab",
            "https://x",
            "http://x",
            "x https://",
            "^a",
            "a\n",
            "\na",
            "a b",
            "é",
            "aé",
            "éa",
            "2026-01-02T",
            "x2026-01-02T",
            "\u{2028}",
            "\u{1F600}",
            "a\u{301}",
            "_",
            "foo.bar",
            "foo:bar",
            "K",
            "aéa",
            "\u{212A}",
            "٣",
        ];
        let mut engines = [0; 2];
        for pattern in [
            "",
            "^",
            "$",
            "^$",
            "a",
            "^a",
            "a$",
            "^a$",
            "^https://",
            "^a b",
            "^foo:bar$",
            "^foo\\.bar$",
            "^(a|b|ab)$",
            "^[^a]+$",
            "[^a]",
            "^.$",
            "^..$",
            r"\bb",
            r"a\b",
            r"\Ba",
            r"\B",
            r"\b",
            r"\B|^x",
            r"^\d{4}-\d{2}-\d{2}T",
            r"\d",
            r"\w",
            r"^\S*$",
            r"\s",
            "^(a+)+$",
            "^a?",
            "a*$",
            "(?:)",
            "^é",
            "é$",
            r"^\u{1F600}$",
            "b|^a",
            "^K$",
            "^_",
        ] {
            let schema = json!({ "pattern": pattern });
            let expected = jsonschema::options()
                .with_pattern_options(PatternOptions::regex())
                .build(&schema)
                .unwrap();
            let engine = linear(pattern).unwrap();
            match engine {
                Engine::Prefix(_) => engines[0] += 1,
                Engine::Walked(..) => engines[1] += 1,
                Engine::Linear { .. } | Engine::Backtracking(_) => {}
            }
            let meter = Meter::default();
            for text in texts {
                let node = [simd_json::Node::String(text)];
                let view = MeteredDocument { document: lone_string(&node), meter: &meter };
                let found = engine.matches(view.root(), text);
                assert_eq!(found, Some(expected.is_valid(&json!(text))), "{pattern:?} {text:?}");
            }
        }
        assert!(engines[0] == 5 && engines[1] > 20, "prefixes, and walked: {engines:?}");
    }

    #[test]
    fn look_ahead_from_the_start_is_taken_apart() {
        let parts = |pattern| {
            split(pattern).map(|parts| {
                let signed =
                    |(expected, part)| format!("{}{part}", if expected { '+' } else { '-' });
                parts.into_iter().map(signed).collect::<Vec<_>>()
            })
        };
        let some = |parts: &[&str]| Some(parts.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(parts("^(?!root)[a-z]+$"), some(&["-^(?:root)", "+^[a-z]+$"]));
        assert_eq!(parts(r"^(?!\s*$).+"), some(&[r"-^(?:\s*$)", "+^.+"]));
        assert_eq!(
            parts("^(?=.*[A-Z])(?=.*[)|(])(?!a|(b))(c|d)$"),
            some(&["+^(?:.*[A-Z])", "+^(?:.*[)|(])", "-^(?:a|(b))", "+^(c|d)$"])
        );
        for other in ["(?!a)b", "^(?!a)b|c", "^a(?!b)", "^(?<!a)b", "^(?!a)*b", "^abc", "^(?!a"] {
            assert_eq!(parts(other), None, "{other}");
        }
    }
}
