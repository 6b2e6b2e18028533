//! Sets the commit of the build: `MCPPROXY_COMMIT` if it is set, otherwise the commit reported by git.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=MCPPROXY_COMMIT");
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let (commit, long) = match commit() {
        Some(commit) => (commit.clone(), format!("{version} ({commit})")),
        None => ("unknown".into(), version),
    };
    println!("cargo::rustc-env=MCPPROXY_COMMIT={commit}");
    println!("cargo::rustc-env=MCPPROXY_LONG_VERSION={long}");
}

fn commit() -> Option<String> {
    if let Ok(commit) = std::env::var("MCPPROXY_COMMIT") {
        return Some(commit);
    }
    // Only in release builds: otherwise every new commit would cause a full rebuild.
    if std::env::var("PROFILE").as_deref() != Ok("release") {
        return None;
    }
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

/// Output of a git command; `None` outside a repository, or without git.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned()).filter(|text| !text.is_empty())
}
