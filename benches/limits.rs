//! Cost of limits for the admission of a request: without limits, with one rate and one concurrency limit, and with all
//! kinds.

use std::hint::black_box;
use std::sync::Arc;
use std::time::SystemTime;

use criterion::Criterion;
use mcpproxy_policy::{
    self as policy, Access, Admission, AdmissionRequest, CallLimits, FactsCell, Principal,
    Reference, SessionFacts, admit, limits,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut criterion = Criterion::default().configure_from_args();
    let server: Arc<str> = "github".into();
    for (name, all, of_server) in [
        ("none", "{}", "{}"),
        ("one rate, one limit", "{}", r#"{"rate_per_minute": 60000000, "concurrent": 100}"#),
        (
            "rates and limits of all kinds, breaker",
            r#"{"rate_per_minute": 60000000, "concurrent": 100, "breaker": {},
                "principals": {"*": {"rate_per_minute": 60000000, "concurrent": 100}}}"#,
            r#"{"rate_per_minute": 60000000, "concurrent": 100}"#,
        ),
    ] {
        let config: limits::Config = serde_json::from_str(all)?;
        let of_server: limits::ServerConfig = serde_json::from_str(of_server)?;
        let limits = Arc::new(CallLimits::new(&config, [(Arc::clone(&server), of_server)]));
        let settings = policy::Settings { limits, ..policy::Settings::default() };
        criterion.bench_function(&format!("limits/{name}"), |bencher| {
            bencher.iter(|| {
                // The limits use a time that the caller has read, so the reading of the clock is part of the
                // measurement.
                mcpproxy_runtime::io::clock::now();
                let of = Reference::Prompt("p".into());
                let request = AdmissionRequest {
                    principal: &Principal::Admin,
                    access: Access::Completion { server: Arc::clone(&server), of },
                    arguments: b"",
                    meta: b"",
                    inputs: b"",
                    intent: None,
                    client: "",
                    session: SessionFacts::default(),
                    carries_out: false,
                    now: SystemTime::UNIX_EPOCH,
                };
                let admitted = admit(black_box(request), black_box(&settings));
                assert!(matches!(admitted, Admission::Permit(_)));
            });
        });
    }
    let cell = FactsCell::default();
    criterion.bench_function("limits/session facts", |bencher| {
        bencher.iter(|| {
            let facts = black_box(&cell).get();
            cell.permitted(None);
            facts
        });
    });
    criterion.final_summary();
    Ok(())
}
