//! `mcpproxy init`: a config to begin with.

use std::convert::Infallible;

use serde_json::json;

use crate::cli::args::Global;
use crate::cli::error::CommandError;
use crate::cli::output::Output;
use crate::cli::terminal_safe::line;
use crate::cli::{load_config, start_proxy};
use crate::config::file::{self, SCHEMA_FILE};
use crate::os::private;

/// What is to be done next.
const NEXT: &str = "\
Next:
  mcpproxy import               take over the servers of Claude, Cursor, VS Code and others
  mcpproxy upstream add NAME …  add one of your own
  mcpproxy serve                run the proxy before them
  mcpproxy connect CLIENT       tell your client where it is";

/// Makes the config file, with a key, if there is none.
pub(super) fn run(global: &Global, output: &Output) -> Result<(), CommandError> {
    let mut loaded = load_config::load(global, None)?;
    let listen = json!(loaded.config.listen.to_string());
    let made = file::edit(&loaded.path, |text| {
        let is_new = text.trim_start_matches('\u{feff}').trim().is_empty();
        let first = format!(
            "{{\n  \"$schema\": \"./{SCHEMA_FILE}\",\n  \"listen\": {listen},\n  \"mcpServers\": {{}}\n}}\n"
        );
        Ok::<_, Infallible>((is_new.then_some(first), is_new))
    });
    let made = made.map_err(|error| load_config::problem(&error))?;
    let has_key = loaded.config.api_key.is_some();
    if made {
        // A blank one that was there has the rights that somebody gave it, and is to hold a key.
        let mended = private::mend_alone(&loaded.path);
        mended
            .map_err(|error| CommandError::failed(format!("{}: {error}", loaded.path.display())))?;
        loaded = load_config::load(global, None)?;
    }
    // One that is there may be that of an older version.
    if made || loaded.path.with_file_name(SCHEMA_FILE).exists() {
        file::put_schema(&loaded.path).map_err(|error| load_config::problem(&error))?;
    }
    let key = loaded.ensure_api_key(start_proxy::random_key()?);
    let key = key.map_err(|error| load_config::problem(&error))?;
    let path = loaded.path.display().to_string();
    // A link is not followed to what somebody else may have.
    let wider = private::wider(&loaded.path);
    let answer = json!({"file": path, "created": made, "key_made": key && !has_key});
    output.print(&answer.to_string(), |_| {
        let path = line(&path);
        let seen = wider.map_or_else(
            || "which only you can read".to_owned(),
            |mode| format!("which others can read or write, too (mode {mode:03o}): chmod 600 it"),
        );
        let own = match key {
            true => ", with a key of its own",
            false => ", without a key: that of MCPPROXY_API_KEY counts",
        };
        let warned = wider.filter(|_| key).map_or_else(String::new, |mode| {
            format!(" Others can read or write it (mode {mode:03o}): chmod 600 it.")
        });
        match (made, key) {
            (true, _) => format!(
                "Made {path}, {seen}{own}.\n\
                 Editors complete and check it by {SCHEMA_FILE} beside it.\n\n{NEXT}"
            ),
            (false, true) => {
                format!("{path} is there already: a key was added to it.{warned}\n\n{NEXT}")
            }
            (false, false) => format!("{path} is there already: nothing was changed.\n\n{NEXT}"),
        }
    })
}
