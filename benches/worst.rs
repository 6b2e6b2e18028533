//! Time and memory for compiling and evaluating worst-case schemas and documents. Prints a table. Each case is measured
//! once, because the differences are in the order of seconds.

use std::time::{Duration, Instant};

use bytes::Bytes;
use mcpproxy_schema::compile::{Engine, Schema, Settings, compile};
use mcpproxy_schema::judge::{JudgeScratch, Verdict};

#[path = "common/worst.rs"]
mod worst;

fn main() {
    // `cargo test --benches` only checks that this program runs.
    let quick = !std::env::args().any(|arg| arg == "--bench");
    println!(
        "{:34} {:>9} {:>11} {:>11} {:>10} verdict",
        "case", "document", "compile", "judge", "allocated"
    );
    for (name, schema, document) in worst::cases(quick) {
        let document = [Bytes::from(document)];
        for engine in [Engine::Tape, Engine::Boon] {
            let settings = Settings { engine, assert_formats: false };
            let began = Instant::now();
            let compiled = compile(schema.to_string().as_bytes(), &settings);
            let compiling = began.elapsed();
            let line = format!("{name} ({engine:?})");
            match compiled {
                Ok(schema) => judge(&line, &schema, &document, compiling),
                Err(reason) => println!("{line:34} {:>9} {compiling:>11.1?}  {reason}", ""),
            }
        }
    }
}

fn judge(line: &str, schema: &Schema, document: &[Bytes; 1], compiling: Duration) {
    let mut scratch = JudgeScratch::new();
    let (mut verdict, mut took) = (String::new(), Duration::ZERO);
    let allocated = allocation_counter::measure(|| {
        let began = Instant::now();
        let judgment = schema.judge(document, &mut scratch);
        took = began.elapsed();
        verdict = match judgment.verdict {
            Verdict::Conforms => "conforms".to_owned(),
            Verdict::Violates(violation) => violation.reason.code().to_owned(),
        };
    });
    println!(
        "{line:34} {:>9} {compiling:>11.1?} {took:>11.1?} {:>9}K  {verdict}",
        document.iter().map(Bytes::len).sum::<usize>(),
        allocated.bytes_max / 1024,
    );
}
