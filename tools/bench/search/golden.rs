//! The golden set: tools as real servers list them, catalogs made of them, and questions with their right tools.
//!
//! What the lines of the files mean, and how the questions are divided, says the `README.md` here. Deliberately
//! strict: a line that is not understood, or names a tool that is not there, is an error.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::value::RawValue;

/// A tool as its server lists it.
pub(crate) struct GoldenTool {
    pub(crate) name: String,
    pub(crate) server: String,
    pub(crate) json: Box<RawValue>,
    /// By its annotation or, without one, by the verb that it is named after.
    pub(crate) destructive: bool,
}

/// The part of the set that a question belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Looked at while the ranking was made.
    Tuned,
    /// Only at the end: every third question.
    HeldOut,
}

/// The intended answer of the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Read,
    Write,
    Delete,
}

/// A question in somebody's words.
pub(crate) struct Question {
    pub(crate) language: String,
    pub(crate) kind: String,
    pub(crate) effect: Effect,
    pub(crate) text: String,
    /// The right tools: 2 for what is meant, 1 for what would do. None for what no tool does.
    pub(crate) right: BTreeMap<String, u32>,
    pub(crate) part: Part,
}

/// Servers that somebody has connected.
pub(crate) struct Selection {
    pub(crate) name: String,
    pub(crate) servers: BTreeSet<String>,
}

pub(crate) struct Golden {
    pub(crate) tools: Vec<GoldenTool>,
    pub(crate) questions: Vec<Question>,
    /// Small ones, as one user has.
    pub(crate) short: Vec<Selection>,
}

/// Verbs that tools are named after which take something away.
const DESTRUCTIVE: [&str; 9] =
    ["delete", "remove", "drop", "destroy", "teardown", "kill", "purge", "clear", "reset"];

impl Golden {
    /// Reads the files of a folder.
    pub(crate) fn read(folder: &str) -> Result<Self, String> {
        let file = |name: &str| {
            let path = format!("{folder}/{name}");
            std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))
        };
        let tools = lines(&file("tools.jsonl")?).map(tool).collect::<Result<Vec<_>, _>>()?;
        let known: BTreeSet<_> = tools.iter().map(|tool| tool.name.clone()).collect();
        let text = file("questions.tsv")?;
        let questions = lines(&text).zip(1..).map(|(line, number)| question(line, number));
        let questions = questions.collect::<Result<Vec<_>, _>>()?;
        let named = questions.iter().flat_map(|question| question.right.keys());
        if let Some(unknown) = named.into_iter().find(|name| !known.contains(*name)) {
            return Err(format!("questions.tsv: there is no tool {unknown}"));
        }
        let text = file("catalogs.txt")?;
        let short = lines(&text).map(selection).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { tools, questions, short })
    }
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
}

fn tool(line: &str) -> Result<GoldenTool, String> {
    #[derive(Deserialize)]
    struct Line<'a> {
        server: String,
        #[serde(borrow)]
        tool: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Named {
        name: String,
        #[serde(default)]
        annotations: Hints,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Hints {
        destructive_hint: Option<bool>,
    }
    let bad = |error: serde_json::Error| format!("tools.jsonl: {error}");
    let Line { server, tool } = serde_json::from_str(line).map_err(bad)?;
    let Named { name, annotations } = serde_json::from_str(tool.get()).map_err(bad)?;
    let mut words = name.split(['_', '-']).map(str::to_lowercase);
    let by_name = words.any(|word| DESTRUCTIVE.contains(&&*word));
    Ok(GoldenTool {
        name: format!("{server}:{name}"),
        server,
        json: tool.to_owned(),
        destructive: annotations.destructive_hint.unwrap_or(by_name),
    })
}

fn question(line: &str, number: usize) -> Result<Question, String> {
    let bad = || format!("questions.tsv, question {number}: {line}");
    let mut columns = line.split('\t');
    let mut column = || columns.next().ok_or_else(bad);
    let (language, kind, effect, text, right) =
        (column()?, column()?, column()?, column()?, column()?);
    let effect = match effect {
        "read" => Effect::Read,
        "write" => Effect::Write,
        "delete" => Effect::Delete,
        _ => return Err(bad()),
    };
    let graded = right.split_whitespace().filter(|name| *name != "-").map(|name| {
        let (name, grade) = name.split_once('=').unwrap_or((name, "2"));
        Ok((name.to_owned(), grade.parse().map_err(|_| bad())?))
    });
    Ok(Question {
        language: language.into(),
        kind: kind.into(),
        effect,
        text: text.into(),
        right: graded.collect::<Result<_, String>>()?,
        part: if number.is_multiple_of(3) { Part::HeldOut } else { Part::Tuned },
    })
}

fn selection(line: &str) -> Result<Selection, String> {
    let (name, servers) = line.split_once(':').ok_or_else(|| format!("catalogs.txt: {line}"))?;
    Ok(Selection {
        name: name.into(),
        servers: servers.split_whitespace().map(str::to_owned).collect(),
    })
}
