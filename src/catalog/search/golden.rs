//! Tests on the golden set (`tools/bench/search`): quality of the ranking, and the benefit of each line of the thesaurus.
//!
//! The file format is described in that folder; only the parts needed by tests are read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;
use serde_json::value::to_raw_value;

use super::query::ParsedQuery;
use super::thesaurus::{Concept, concept_key};
use super::{Index, Lexicon, Segment};
use mcpproxy_policy::tool::{Annotations, Rules, Tool, ToolName};

const REAL_TOOLS: &str = include_str!("../../../tools/bench/search/tools.jsonl");
const QUESTIONS: &str = include_str!("../../../tools/bench/search/questions.tsv");
const CATALOGS: &str = include_str!("../../../tools/bench/search/catalogs.txt");

struct Question {
    kind: &'static str,
    effect: &'static str,
    text: &'static str,
    meant: Vec<&'static str>,
    held_out: bool,
}

fn lines(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn questions() -> Vec<Question> {
    let parse = |(line, number): (&'static str, usize)| {
        let columns: Vec<_> = line.split('\t').collect();
        let meant = columns[4].split(' ').filter(|name| *name != "-" && !name.contains('='));
        Question {
            kind: columns[1],
            effect: columns[2],
            text: columns[3],
            meant: meant.collect(),
            held_out: number % 3 == 0,
        }
    };
    lines(QUESTIONS).zip(1..).map(parse).collect()
}

fn tools() -> Vec<Arc<Tool>> {
    let parse = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let (server, tool) = (line["server"].as_str().unwrap(), &line["tool"]);
        let name = tool["name"].as_str().unwrap();
        let hints: Annotations = match tool.get("annotations") {
            Some(hints) => serde_json::from_value(hints.clone()).unwrap(),
            None => Annotations::default(),
        };
        let name = ToolName { server: server.into(), tool: name.into() };
        Arc::new(Tool {
            title: tool["title"].as_str().map(Into::into),
            description: tool["description"].as_str().unwrap().into(),
            input_schema: to_raw_value(&tool["inputSchema"]).unwrap(),
            ..Tool::named(name, hints, &Rules::default())
        })
    };
    let mut tools: Vec<_> = lines(REAL_TOOLS).map(parse).collect();
    tools.sort_by(|a, b| a.name.cmp(&b.name));
    tools
}

/// An index, and the names of its tools.
struct Asking {
    index: Index,
    names: Vec<String>,
    destroys: BTreeSet<String>,
}

impl Asking {
    fn of(lexicon: &Arc<Lexicon>, tools: &[Arc<Tool>], only: Option<&BTreeSet<&str>>) -> Self {
        let kept = |tool: &&Arc<Tool>| only.is_none_or(|only| only.contains(&*tool.name.server));
        let tools: Vec<_> = tools.iter().filter(kept).collect();
        let servers = tools.chunk_by(|a, b| a.name.server == b.name.server);
        let segments: Vec<_> =
            servers.map(|tools| Arc::new(Segment::of(lexicon, tools.iter().copied()))).collect();
        let destroys = tools.iter().filter(|tool| tool.annotations.destructive_hint == Some(true));
        Self {
            index: Index::of(Arc::clone(lexicon), segments),
            names: tools.iter().map(|tool| tool.name.to_string()).collect(),
            destroys: destroys.map(|tool| tool.name.to_string()).collect(),
        }
    }

    /// Whether the question is about these tools.
    fn concerns(&self, question: &Question) -> bool {
        question.kind == "none"
            || question.meant.iter().any(|name| self.names.iter().any(|known| known == name))
    }

    fn place(&self, question: &Question, found: &[(usize, f32)]) -> Option<usize> {
        found.iter().position(|(at, _)| question.meant.contains(&&*self.names[*at]))
    }
}

fn short(lexicon: &Arc<Lexicon>, tools: &[Arc<Tool>]) -> Vec<Asking> {
    let catalogs = lines(CATALOGS).map(|line| {
        let (_, servers) = line.split_once(':').unwrap();
        Asking::of(lexicon, tools, Some(&servers.split_whitespace().collect()))
    });
    catalogs.collect()
}

#[derive(Debug, Default)]
struct Score {
    asked: f64,
    within_five: f64,
    reciprocal: f64,
    unanswerable: f64,
    unanswered: f64,
    destroying_first: usize,
}

fn score(catalogs: &[Asking], questions: &[Question], of: impl Fn(&Question) -> bool) -> Score {
    let mut score = Score::default();
    for catalog in catalogs {
        for question in questions.iter().filter(|it| of(it) && catalog.concerns(it)) {
            let found = catalog.index.search(question.text);
            let first = found.first().and_then(|(at, _)| catalog.names.get(*at));
            if question.effect == "read" && first.is_some_and(|it| catalog.destroys.contains(it)) {
                score.destroying_first += 1;
            }
            if question.kind == "none" {
                score.unanswerable += 1.0;
                score.unanswered += f64::from(u8::from(found.is_empty()));
                continue;
            }
            score.asked += 1.0;
            if let Some(place) = catalog.place(question, &found) {
                score.within_five += f64::from(u8::from(place < 5));
                score.reciprocal += 1.0 / (place + 1) as f64;
            }
        }
    }
    score
}

/// Minimum recall at five and mean reciprocal rank in small catalogs: `SHORT` for the questions used to develop the
/// ranking, `SHORT_HELD_OUT` for the held-out questions.
const SHORT: (f64, f64) = (0.87, 0.77);
const SHORT_HELD_OUT: (f64, f64) = (0.90, 0.80);
/// The same minimums for a search among all tools, for both sets of questions.
const ALL: (f64, f64) = (0.72, 0.62);
/// Minimum share of unanswerable questions that give no result, and of misspelled questions whose tool is found.
const MIN_UNANSWERED: f64 = 0.75;
const TYPOS: f64 = 0.6;
/// Number of questions about reading, per part, for which a destructive tool comes first.
const DESTROYING_FIRST: usize = 0;

#[test]
fn fr_021_golden_set_quality_does_not_regress() {
    let (lexicon, tools, questions) = (Arc::new(Lexicon::default()), tools(), questions());
    assert!(tools.len() >= 500 && questions.len() >= 120);
    let short = short(&lexicon, &tools);
    let all = [Asking::of(&lexicon, &tools, None)];
    let mut below = Vec::new();
    for held_out in [false, true] {
        let of_short = if held_out { SHORT_HELD_OUT } else { SHORT };
        for (catalogs, (recall, reciprocal)) in [(&*short, of_short), (&all[..], ALL)] {
            let score = score(catalogs, &questions, |question| question.held_out == held_out);
            let of_both = |question: &Question| question.kind == "typo";
            let typos = super::golden::score(catalogs, &questions, of_both);
            let kept = score.within_five >= recall * score.asked
                && score.reciprocal >= reciprocal * score.asked
                && score.unanswered >= MIN_UNANSWERED * score.unanswerable
                && typos.within_five >= TYPOS * typos.asked
                && score.destroying_first == DESTROYING_FIRST;
            println!("held out {held_out}: {score:?}");
            if !kept {
                below.push((held_out, recall, score));
            }
        }
    }
    assert!(below.is_empty(), "{below:#?}");
}

#[test]
fn accidental_name_match_does_not_hide_other_tools() {
    let (lexicon, tools) = (Arc::new(Lexicon::default()), tools());
    let of_server = |server: &'static str| Asking::of(&lexicon, &tools, Some(&[server].into()));
    let names = |asking: &Asking, query: &str| {
        let found = asking.index.search(query).into_iter();
        found.map(|(at, _)| asking.names[at].clone()).collect::<Vec<_>>()
    };
    let files = names(&of_server("filesystem"), "read file");
    assert_eq!(files.first().unwrap(), "filesystem:read_text_file");
    assert_eq!(files.last().unwrap(), "filesystem:read_file", "the tool is deprecated");
    let issues = names(&of_server("github"), "list issues");
    assert_eq!(issues[0], "github:list_issues");
    assert!(issues.len() > 1, "{issues:?}");
}

/// Maximum loss over all questions that one line of the thesaurus may cause. It corresponds to one first rank.
const HARM: f64 = -1.0;

#[test]
fn every_thesaurus_line_improves_search() {
    let (lexicon, tools, questions) = (Arc::new(Lexicon::default()), tools(), questions());
    let short = short(&lexicon, &tools);
    let all = [Asking::of(&lexicon, &tools, None)];
    let concepts: BTreeMap<_, Concept> =
        (0..).take(lexicon.thesaurus.concepts()).map(|at| (concept_key(at), at)).collect();
    // Loss without each concept, in small catalogs and among all tools.
    let mut worth: BTreeMap<Concept, [f64; 2]> = BTreeMap::new();
    for (set, catalogs) in [&*short, &all].into_iter().enumerate() {
        for catalog in catalogs {
            let answerable = |it: &&Question| it.kind != "none" && catalog.concerns(it);
            for question in questions.iter().filter(|it| !it.held_out).filter(answerable) {
                let asked = ParsedQuery::read(&lexicon, question.text);
                let reciprocal = |asked: ParsedQuery| {
                    let found = catalog.index.answer(asked, question.text, |_| true);
                    catalog.place(question, &found).map_or(0.0, |place| 1.0 / (place + 1) as f64)
                };
                let used = asked.terms.iter().flat_map(|term| &term.meanings).copied();
                let used: BTreeSet<_> = used.filter_map(|key| concepts.get(&key)).collect();
                let with = reciprocal(asked);
                for concept in used {
                    let mut without = ParsedQuery::read(&lexicon, question.text);
                    for term in &mut without.terms {
                        term.meanings.retain(|key| *key != concept_key(*concept));
                    }
                    worth.entry(*concept).or_default()[set] += with - reciprocal(without);
                }
            }
        }
    }
    let harmful: Vec<_> =
        worth.iter().filter(|(_, worth)| worth.iter().sum::<f64>() < HARM).collect();
    let named = harmful.iter().map(|(concept, worth)| (lexicon.thesaurus.named(**concept), worth));
    assert!(harmful.is_empty(), "{:#?}", named.collect::<Vec<_>>());
}

/// Server, tool, description and parameters, in the wording of real servers.
pub(crate) const TOOLS: &[(&str, &str, &str, &str)] = &[
    (
        "filesystem",
        "read_text_file",
        "Read the complete contents of a file from the file system as text. Handles various text encodings and provides detailed error messages if the file cannot be read. Use this tool when you need to examine the contents of a single file. Only works within allowed directories.",
        "path tail head",
    ),
    (
        "filesystem",
        "read_media_file",
        "Read an image or audio file. Returns the base64 encoded data and MIME type. Only works within allowed directories.",
        "path",
    ),
    (
        "filesystem",
        "read_multiple_files",
        "Read the contents of multiple files simultaneously. This is more efficient than reading files one by one when you need to analyze or compare multiple files. Only works within allowed directories.",
        "paths",
    ),
    (
        "filesystem",
        "write_file",
        "Create a new file or completely overwrite an existing file with new content. Use with caution as it will overwrite existing files without warning. Only works within allowed directories.",
        "path content",
    ),
    (
        "filesystem",
        "edit_file",
        "Make line-based edits to a text file. Each edit replaces exact line sequences with new content. Returns a git-style diff showing the changes made. Only works within allowed directories.",
        "path edits dryRun",
    ),
    (
        "filesystem",
        "create_directory",
        "Create a new directory or ensure a directory exists. Can create multiple nested directories in one operation. Only works within allowed directories.",
        "path",
    ),
    (
        "filesystem",
        "list_directory",
        "Get a detailed listing of all files and directories in a specified path. Results clearly distinguish between files and directories. Only works within allowed directories.",
        "path",
    ),
    (
        "filesystem",
        "directory_tree",
        "Get a recursive tree view of files and directories as a JSON structure. Only works within allowed directories.",
        "path excludePatterns",
    ),
    (
        "filesystem",
        "move_file",
        "Move or rename files and directories. Can move files between directories and rename them in a single operation. Only works within allowed directories.",
        "source destination",
    ),
    (
        "filesystem",
        "search_files",
        "Recursively search for files and directories matching a pattern. Great for finding files when you don't know their exact location. Only searches within allowed directories.",
        "path pattern excludePatterns",
    ),
    (
        "filesystem",
        "get_file_info",
        "Retrieve detailed metadata about a file or directory. Returns comprehensive information including size, creation time, last modified time, permissions, and type.",
        "path",
    ),
    (
        "filesystem",
        "list_allowed_directories",
        "Returns the list of directories that this server is allowed to access.",
        "",
    ),
    (
        "github",
        "create_repository",
        "Create a new GitHub repository in your account or specified organization",
        "name description private autoInit",
    ),
    ("github", "delete_repo", "Delete a repository", "owner repo"),
    (
        "github",
        "fork_repository",
        "Fork a GitHub repository to your account or specified organization",
        "owner repo organization",
    ),
    (
        "github",
        "search_repositories",
        "Find GitHub repositories by name, description, readme, topics, or other metadata",
        "query page perPage",
    ),
    (
        "github",
        "create_issue",
        "Create a new issue in a GitHub repository",
        "owner repo title body assignees labels",
    ),
    (
        "github",
        "list_issues",
        "List issues in a GitHub repository with filtering options",
        "owner repo state labels since",
    ),
    (
        "github",
        "update_issue",
        "Update an existing issue in a GitHub repository",
        "owner repo issue_number state title",
    ),
    (
        "github",
        "add_issue_comment",
        "Add a comment to an existing issue",
        "owner repo issue_number body",
    ),
    (
        "github",
        "create_pull_request",
        "Create a new pull request in a GitHub repository",
        "owner repo title head base",
    ),
    (
        "github",
        "list_pull_requests",
        "List pull requests in a GitHub repository",
        "owner repo state",
    ),
    ("github", "merge_pull_request", "Merge a pull request", "owner repo pull_number merge_method"),
    (
        "github",
        "get_file_contents",
        "Get the contents of a file or directory from a GitHub repository",
        "owner repo path branch",
    ),
    (
        "github",
        "push_files",
        "Push multiple files to a GitHub repository in a single commit",
        "owner repo branch files message",
    ),
    (
        "github",
        "create_branch",
        "Create a new branch in a GitHub repository",
        "owner repo branch from_branch",
    ),
    ("github", "search_code", "Search for code across GitHub repositories", "q order page"),
    ("github", "search_users", "Search for users on GitHub", "q order page"),
    (
        "memory",
        "create_entities",
        "Create multiple new entities in the knowledge graph",
        "entities",
    ),
    (
        "memory",
        "create_relations",
        "Create multiple new relations between entities in the knowledge graph. Relations should be in active voice",
        "relations",
    ),
    (
        "memory",
        "add_observations",
        "Add new observations to existing entities in the knowledge graph",
        "observations",
    ),
    (
        "memory",
        "delete_entities",
        "Delete multiple entities and their associated relations from the knowledge graph",
        "entityNames",
    ),
    (
        "memory",
        "delete_observations",
        "Delete specific observations from entities in the knowledge graph",
        "deletions",
    ),
    ("memory", "read_graph", "Read the entire knowledge graph", ""),
    ("memory", "search_nodes", "Search for nodes in the knowledge graph based on a query", "query"),
    ("time", "get_current_time", "Get current time in a specific timezones", "timezone"),
    (
        "time",
        "convert_time",
        "Convert time between timezones",
        "source_timezone time target_timezone",
    ),
    ("git", "git_status", "Shows the working tree status", "repo_path"),
    (
        "git",
        "git_diff_unstaged",
        "Shows changes in the working directory that are not yet staged",
        "repo_path context_lines",
    ),
    ("git", "git_commit", "Records changes to the repository", "repo_path message"),
    ("git", "git_add", "Adds file contents to the staging area", "repo_path files"),
    ("git", "git_reset", "Unstages all staged changes", "repo_path"),
    ("git", "git_log", "Shows the commit logs", "repo_path max_count"),
    ("git", "git_checkout", "Switches branches", "repo_path branch_name"),
    (
        "fetch",
        "fetch",
        "Fetches a URL from the internet and optionally extracts its contents as markdown.",
        "url max_length raw",
    ),
    ("slack", "slack_post_message", "Post a new message to a Slack channel", "channel_id text"),
    (
        "slack",
        "slackListChannels",
        "List public channels in the workspace with pagination",
        "limit cursor",
    ),
];

/// A query, and the tool that it is about.
pub(super) const QUERIES: &[(&str, &str)] = &[
    ("remove a repository", "github:delete_repo"),
    ("get rid of a repo, delete it", "github:delete_repo"),
    ("make a folder", "filesystem:create_directory"),
    ("what files are in this folder", "filesystem:list_directory"),
    ("show me the text of a file", "filesystem:read_text_file"),
    ("open a picture", "filesystem:read_media_file"),
    ("save text to a file", "filesystem:write_file"),
    ("rename a file", "filesystem:move_file"),
    ("how big is this file", "filesystem:get_file_info"),
    ("find a file by name", "filesystem:search_files"),
    ("change a few lines in a file", "filesystem:edit_file"),
    ("report a bug", "github:create_issue"),
    ("show open tickets", "github:list_issues"),
    ("reply to an issue", "github:add_issue_comment"),
    ("open a PR", "github:create_pull_request"),
    ("merge my pull request", "github:merge_pull_request"),
    ("close an issue", "github:update_issue"),
    ("start a new project on github", "github:create_repository"),
    ("what time is it in Tokyo", "time:get_current_time"),
    ("translate 5pm Berlin to New York time", "time:convert_time"),
    ("remember that Alice likes tea", "memory:add_observations"),
    ("forget a person, remove the entity", "memory:delete_entities"),
    ("everything you know, whole knowledge graph", "memory:read_graph"),
    ("undo staged changes", "git:git_reset"),
    ("commit history", "git:git_log"),
    ("what did I change that is not staged", "git:git_diff_unstaged"),
    ("switch to another branch", "git:git_checkout"),
    ("download a web page", "fetch:fetch"),
    ("send a message to the team on slack", "slack:slack_post_message"),
    ("list channels", "slack:slackListChannels"),
    ("delete_repo", "github:delete_repo"),
    ("githubDeleteRepo", "github:delete_repo"),
];
