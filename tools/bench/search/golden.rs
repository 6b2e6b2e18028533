//! The golden set: tools as real servers list them, catalogs made of them, and questions with the right tools for each.
//!
//! The `README.md` in this folder describes the lines of the files, and how the questions are divided into parts. The
//! reader is deliberately strict: a line that it does not understand, or that names a missing tool, is an error.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::value::RawValue;

/// A tool as its server lists it.
pub(crate) struct GoldenTool {
    pub(crate) name: String,
    pub(crate) server: String,
    pub(crate) json: Box<RawValue>,
    /// Taken from its annotation, or without an annotation from the verb in its name.
    pub(crate) destructive: bool,
}

/// The part of the set that a question belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Used while the ranking was tuned.
    Tuned,
    /// Used only for the final measurement: every third question.
    HeldOut,
}

/// Kind of tool that the question asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Read,
    Write,
    Delete,
}

/// A question as a user would phrase it.
pub(crate) struct Question {
    pub(crate) language: String,
    pub(crate) kind: String,
    pub(crate) effect: Effect,
    pub(crate) text: String,
    /// The right tools with their grades: 2 for an intended tool, 1 for an acceptable one. Empty if no tool is right.
    pub(crate) right: BTreeMap<String, u32>,
    pub(crate) part: Part,
}

/// A selection of servers, as a user would connect them.
pub(crate) struct Selection {
    pub(crate) name: String,
    pub(crate) servers: BTreeSet<String>,
}

pub(crate) struct Golden {
    pub(crate) tools: Vec<GoldenTool>,
    pub(crate) questions: Vec<Question>,
    /// Small catalogs, like that of a single user.
    pub(crate) short: Vec<Selection>,
}

/// Verbs in the names of tools that delete or end something.
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
