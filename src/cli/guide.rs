//! User guide, one page per subject. [`PAGES`] embeds the pages, which `mcpproxy guide` prints.
//!
//! [`clients`], [`identities`], [`calls`], [`policy`](mod@policy), [`command_line`], [`rest`], [`fleet`],
//! [`fleet_setup`], [`fleet_scale`], [`configuration`], [`tls`], [`operation`],
//! [`security`],
//! [`speed`], [`compatibility`].

/// A page of the handbook.
#[derive(Clone, Copy, Debug)]
pub struct GuidePage {
    /// Name on the command line.
    pub name: &'static str,
    /// Content in one line.
    pub about: &'static str,
    /// Markdown with rustdoc links.
    pub text: &'static str,
}

/// Declares the module and the embedded text of each page.
macro_rules! pages {
    ($($module:ident = $name:literal, $file:literal, $about:literal;)+) => {
        /// All pages, in reading order.
        pub const PAGES: &[GuidePage] =
            &[$(GuidePage { name: $name, about: $about, text: include_str!($file) }),+];

        $(
            pub mod $module {
                #![doc = include_str!($file)]
            }
        )+
    };
}

pages! {
    clients = "clients", "../guide/clients.md", "config files and permissions for Cursor, Claude Desktop and VS Code";
    identities = "identities", "../guide/identities.md", "agent tokens, logins of an identity provider, client certificates";
    calls = "calls", "../guide/calls.md", "intent, direct tool names, resources and prompts, results, protocol revisions";
    policy = "policy", "../guide/policy.md", "Cedar rules, calls that wait for a person, changed tool definitions";
    command_line = "command-line", "../guide/command_line.md", "every command, its output and its exit code";
    rest = "rest", "../guide/rest.md", "every route of the REST API";
    configuration = "configuration", "../guide/configuration.md", "every key of the config, secrets, live reload, crash behavior";
    tls = "tls", "../guide/tls.md", "TLS, Unix sockets, client certificates";
    operation = "operation", "../guide/operation.md", "service, metrics, alerts, dashboard, traces, logs, repair";
    security = "security", "../guide/security.md", "guarantees and limits";
    fleet = "fleet", "../guide/fleet.md", "several nodes with one signed record in an object store";
    fleet_setup = "fleet-setup", "../guide/fleet_setup.md", "from one machine to three nodes, step by step";
    fleet_scale = "fleet-scale", "../guide/fleet_scale.md", "an estimate of what a fleet of 1000 nodes costs";
    compatibility = "compatibility", "../guide/compatibility.md", "which features work between which clients and servers";
    speed = "speed", "../guide/speed.md", "comparison with nginx";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_embedded_under_the_name_of_its_file() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../guide");
        let mut files: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .map(|file| file.trim_end_matches(".md").replace('_', "-"))
            .collect();
        let mut names: Vec<_> = PAGES.iter().map(|page| page.name.to_owned()).collect();
        files.sort();
        names.sort();
        assert_eq!(names, files);
        for page in PAGES {
            assert!(page.text.starts_with("# "), "{}", page.name);
        }
    }
}
