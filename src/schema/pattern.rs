//! Regular expressions, matched in bounded time.
//!
//! Most patterns are a prefix or have a small DFA. They are matched in this module, because starting a full engine
//! costs more than matching a short string. A linear pattern with a large automaton takes time for all of its states at
//! each byte. Patterns whose only look-around is a look-ahead at the start are split into linear ones; all others are
//! run by a backtracking engine with a limit of [`BACKTRACK_MAX`]. Slow patterns are charged their worst case in
//! advance.

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

/// Maximum compiled size of a regular expression, in bytes.
pub(super) const PROGRAM_MAX: usize = 1 << 20;

/// Cost of starting the backtracking engine, in the unit of `Graph::name_visits`.
const VISITS_TO_START: u64 = 6;

/// Maximum size in bytes of the DFA of a fast pattern, and of its construction. The engine's cache is several times as large, so the engine
/// never falls back to a slower method.
const AUTOMATON_MAX: usize = PROGRAM_MAX / 4;

/// Maximum size in bytes of a DFA that is run by this module.
const WALKED_MAX: usize = 16 << 10;

/// Number of NFA states simulated per step.
const STATES_PER_STEP: u64 = 2;

/// Worst-case steps per byte of text of a linear `pattern`; 0 if it is fast.
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

/// DFA of an unanchored search, if the DFA and its construction take at most `size` bytes each.
fn automaton(nfa: &NFA, size: usize) -> Option<dense::DFA<Vec<u32>>> {
    let config = dense::Config::new()
        .dfa_size_limit(Some(size))
        .determinize_size_limit(Some(size))
        .start_kind(StartKind::Unanchored)
        .accelerate(false);
    dense::Builder::new().configure(config).build_from_nfa(nfa).ok()
}

/// Cost of a split pattern per name.
pub(super) struct Apart {
    /// Number of visits, for starting the engine and for each part.
    pub(super) visits: u64,
    /// Steps per byte of the name; 0 if all parts are fast.
    pub(super) steps_per_byte: u64,
}

/// Cost of `pattern` in the backtracking engine against names, if it needs no backtracking: the engine passes each part of a [`split`]
/// pattern to a linear engine, anchored at the start of the name. `None` for other patterns.
pub(super) fn apart(pattern: &str) -> Option<Apart> {
    let parts = split(pattern)?;
    let linear = |part: &str| is_linear(part, PROGRAM_MAX);
    if !parts.iter().all(|(_, part)| linear(part)) {
        return None;
    }
    // With capture groups, NFA states are simulated instead of a DFA.
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

/// Whether `pattern` has a capture group.
fn capturing(pattern: &str) -> bool {
    outside_classes(pattern).any(|(at, byte)| {
        let group = pattern.get(at + 1..).unwrap_or_default();
        byte == b'(' && (!group.starts_with('?') || group.starts_with("?<"))
    })
}

/// Split pattern.
pub(super) struct CompiledPattern {
    /// Parts that must match or must not match.
    parts: Vec<Part>,
}

struct Part {
    expected: bool,
    engine: Engine,
}

enum Engine {
    /// `^` and literal text.
    Prefix(Box<str>),
    /// Small DFA, and its start state.
    Walked(Box<dense::DFA<Vec<u32>>>, StateID),
    Linear {
        validator: Validator<TapeJson>,
        steps_per_byte: u64,
    },
    Backtracking(Validator<TapeJson>),
}

/// Compiled patterns of a schema, each built once.
#[derive(Clone, Default)]
pub(super) struct PatternCache(Arc<Mutex<HashMap<String, Arc<CompiledPattern>>>>);

impl PatternCache {
    /// Callback of jsonschema for each `pattern` of the schema.
    pub(super) fn keyword<'a>(
        &self,
        value: &'a Value,
    ) -> Result<Box<dyn for<'i> Keyword<'i, TapeJson>>, ValidationError<'a>> {
        let text =
            value.as_str().ok_or_else(|| ValidationError::custom("pattern is not a string"))?;
        Ok(Box::new(self.get(text)?))
    }

    /// Compiled form of `pattern`.
    pub(super) fn get(
        &self,
        pattern: &str,
    ) -> Result<Arc<CompiledPattern>, ValidationError<'static>> {
        let mut built = self.0.lock();
        if let Some(known) = built.get(pattern) {
            return Ok(Arc::clone(known));
        }
        let compiled = Arc::new(CompiledPattern::new(pattern)?);
        built.insert(pattern.to_owned(), Arc::clone(&compiled));
        Ok(compiled)
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

    /// Whether [`matches`](Self::matches) can decide about every text.
    pub(super) fn is_quick(&self) -> bool {
        self.parts.iter().all(|part| matches!(part.engine, Engine::Prefix(_) | Engine::Walked(..)))
    }

    /// Whether `text`, which must be UTF-8, matches; `None` if an engine is needed.
    pub(super) fn matches(&self, text: &[u8]) -> Option<bool> {
        for part in &self.parts {
            if part.engine.quick_match(text)? != part.expected {
                return Some(false);
            }
        }
        Some(true)
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
    /// Whether `text` matches; `None` if an engine is needed.
    fn quick_match(&self, text: &[u8]) -> Option<bool> {
        match self {
            Self::Prefix(prefix) => Some(text.starts_with(prefix.as_bytes())),
            Self::Walked(automaton, start) => Some(walk(automaton, *start, text)),
            Self::Linear { .. } | Self::Backtracking(_) => None,
        }
    }

    /// Whether `text`, the value at `instance`, matches; `None` once the steps are used up.
    fn matches(&self, instance: TapeNode<'_>, text: &str) -> Option<bool> {
        let meter = instance.meter();
        match self {
            Self::Prefix(_) | Self::Walked(..) => self.quick_match(text.as_bytes()),
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
                        // Any other error means that the engine reached its limit.
                        meter.exhaust();
                        None
                    }
                }
            }
        }
    }
}

/// Whether `automaton` finds a match in `text`. Matches are delayed by one byte.
fn walk(automaton: &dense::DFA<Vec<u32>>, start: StateID, text: &[u8]) -> bool {
    let mut state = start;
    for byte in text {
        state = automaton.next_state(state, *byte);
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

/// Literal ASCII text after `^`.
fn prefix(pattern: &str) -> Option<&str> {
    let rest = pattern.strip_prefix('^')?;
    let itself = |byte: u8| byte.is_ascii() && !br"\^$.|?*+()[]{}".contains(&byte);
    rest.bytes().all(itself).then_some(rest)
}

fn walked(pattern: &str) -> Option<Engine> {
    let translated = jsonschema_regex::to_rust_regex(pattern).ok()?;
    let nfa = states(&translated)?;
    // The DFA runs over bytes, so it must not match within a character, not even the empty string.
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

/// Splits `^(?=A)(?!B)…R` into `^A`, not `^B`, … and `^R`; `None` for other forms.
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

/// Offset of the end of the group that opened before `text`.
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

/// Bytes that are neither escaped nor in a character class.
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

/// Whether `pattern` compiles for the linear engine within `size` bytes.
pub(super) fn is_linear(pattern: &str, size: usize) -> bool {
    let options = PatternOptions::regex().size_limit(size).dfa_size_limit(size);
    let options = jsonschema::options_for::<TapeJson>().with_pattern_options(options);
    builds(&options.build(&as_name(pattern)))
}

/// Whether `pattern` compiles for the backtracking engine within `size` bytes.
pub(super) fn is_backtracking(pattern: &str, size: usize) -> bool {
    let options = PatternOptions::fancy_regex().size_limit(size).dfa_size_limit(size);
    let options = jsonschema::options_for::<TapeJson>().with_pattern_options(options);
    builds(&options.build(&as_name(pattern)))
}

/// Schema with `pattern` at a place that meta-schemas do not check.
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
    use mcpproxy_json::tape::lone_string;

    #[test]
    fn pattern_with_a_small_automaton_is_fast() {
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
    fn prefix_and_dfa_agree_with_the_engine() {
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
        assert!(engines[0] == 5 && engines[1] > 20, "prefixes and DFAs: {engines:?}");
    }

    #[test]
    fn look_ahead_at_the_start_is_split() {
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
