//! Cost of a search over 1 000 tools and over 50 000: questions, queries with typing errors, and the longest query that
//! is fully used.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use mcpproxy_catalog::search::{Index, Lexicon, Segment, ToolVectors, UnitVector};
use mcpproxy_policy::tool::{Annotations, Rules, Tool, ToolName};
use serde_json::value::RawValue;

/// The allocator of the released program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const VERBS: [&str; 8] = ["get", "list", "create", "update", "delete", "search", "send", "export"];
const THINGS: [&str; 12] = [
    "issue",
    "file",
    "message",
    "calendar event",
    "branch",
    "database table",
    "page",
    "contact",
    "container log",
    "invoice",
    "folder",
    "comment",
];

/// A tool with a description worded like those of real servers.
fn tool(server: usize, at: usize) -> Option<Arc<Tool>> {
    let verb = VERBS.get(at % VERBS.len())?;
    let thing = THINGS.get(at / VERBS.len() % THINGS.len())?;
    let name = format!("{verb}_{}_{at}", thing.replace(' ', "_"));
    let about = format!(
        "Use this to {verb} one {thing} of workspace w{server}. Returns the {thing} with its owner, state and the \
         time of the last change; word{at}x is only here."
    );
    let schema = format!(
        r#"{{"type":"object","properties":{{"{}_id":{{"type":"string","description":"The {thing} that is meant"}},"owner":{{"type":"string","description":"Only those of this owner"}}}}}}"#,
        thing.replace(' ', "_")
    );
    Some(Arc::new(Tool {
        description: about.into(),
        input_schema: RawValue::from_string(schema).ok()?,
        ..Tool::named(
            ToolName { server: format!("server{server}").into(), tool: name.into() },
            Annotations::default(),
            &Rules::default(),
        )
    }))
}

fn segments(lexicon: &Lexicon, servers: usize, tools: usize) -> Vec<Arc<Segment>> {
    let segment = |server| {
        let tools: Vec<_> = (0..tools).filter_map(|at| tool(server, at)).collect();
        Arc::new(Segment::of(lexicon, &tools))
    };
    (0..servers).map(segment).collect()
}

fn search(c: &mut Criterion) {
    let lexicon = Arc::new(Lexicon::default());
    let long = "serach the mesages of folderx and kubernets that nobody knows ".repeat(60);
    for (servers, tools) in [(20, 50), (100, 500)] {
        let segments = segments(&lexicon, servers, tools);
        let all = servers * tools;
        c.bench_function(&format!("index of {all} tools, one server's words rebuilt"), |b| {
            let set: Vec<_> = (0..tools).filter_map(|at| tool(0, at)).collect();
            b.iter(|| {
                let changed = Arc::new(Segment::of(&lexicon, &set));
                let others = segments.iter().skip(1).cloned();
                Index::of(Arc::clone(&lexicon), std::iter::once(changed).chain(others))
            });
        });
        let index = Index::of(Arc::clone(&lexicon), segments);
        for (what, query) in [
            ("a question", "show me the open issues of this workspace"),
            ("another language", "Welche Termine habe ich morgen?"),
            ("typing errors", "serach a calender evnt"),
            ("nothing known", "order a pizza with extra cheese"),
            ("the longest", &*long),
        ] {
            c.bench_function(&format!("{all} tools, {what}"), |b| {
                b.iter(|| index.search(black_box(query)));
            });
        }
    }
}

/// Pseudorandom vector in place of one from a model. The same tool always has the same vector.
fn vector(at: usize) -> Option<UnitVector> {
    const DIMENSIONS: usize = 384;
    let mut state = at as u64 + 1;
    let numbers = (0..DIMENSIONS).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    });
    UnitVector::of(numbers.collect())
}

fn meaning(c: &mut Criterion) {
    for tools in [1_000, 50_000] {
        let known = (0..tools).filter_map(|at| Some((tool(0, at)?, vector(at)?)));
        let known: Vec<_> = known.collect();
        let known = known.iter().map(|(tool, vector)| (Arc::clone(tool), vector.numbers()));
        let vectors = ToolVectors::of(known);
        let Some(asked) = vector(usize::MAX / 2) else { return };
        // Thresholds reached by all, some and no tools.
        for (what, least) in [("all near", -1.0), ("some near", 0.1), ("none near", 1.0)] {
            c.bench_function(&format!("{tools} tools, nearest, {what}"), |b| {
                b.iter(|| vectors.nearest(black_box(&asked), least, |_| Some(0)));
            });
        }
    }
}

criterion_group!(benches, search, meaning);
criterion_main!(benches);
