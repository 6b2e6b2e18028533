//! Embedded pages of the user guide, which `mcpproxy guide` prints.

use mcpproxy_runtime::nearest::nearest;

/// A page of the guide.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuidePage {
    /// Name on the command line.
    pub(super) name: &'static str,
    /// Content in one line.
    pub(super) about: &'static str,
    /// Markdown. A link to another page is relative: `calls.md#results`.
    pub(super) text: &'static str,
}

impl GuidePage {
    /// The sections whose heading contains the words, written as text or as the anchor of a link; empty if there are none.
    pub(super) fn sections(&self, words: &str) -> String {
        let words = anchor(words);
        let (mut is_code, mut within, mut found) = (false, None, String::new());
        for line in self.text.lines() {
            is_code ^= line.starts_with("```");
            let level = line.chars().take_while(|letter| *letter == '#').count();
            if level > 0 && !is_code {
                within = within.filter(|outer| level > *outer);
                let is_meant = level > 1 && anchor(line).contains(&words);
                within = within.or(is_meant.then_some(level));
            }
            if within.is_some() {
                found += line;
                found.push('\n');
            }
        }
        found
    }

    /// The headings below that of the page.
    pub(super) fn headings(&self) -> Vec<&'static str> {
        self.lines_outside_code().filter_map(|line| line.strip_prefix("## ")).collect()
    }

    /// The anchor of the section, at any level, whose name is most similar to the words, if any is similar.
    pub(super) fn similar_section(&self, words: &str) -> Option<String> {
        let anchors: Vec<_> =
            self.lines_outside_code().filter(|line| line.starts_with("##")).map(anchor).collect();
        nearest(&anchor(words), anchors.iter().map(String::as_str)).map(str::to_owned)
    }

    fn lines_outside_code(&self) -> impl Iterator<Item = &'static str> {
        self.text.split("```").step_by(2).flat_map(str::lines)
    }
}

/// Name of the page that is not in the folder of the guide.
const README: &str = "readme";

/// Anchor of a heading, as in links: lower case, with hyphens for blanks and without punctuation.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
    text.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, '-' | '_')).collect()
}

const fn page(name: &'static str, about: &'static str, text: &'static str) -> GuidePage {
    GuidePage { name, about, text }
}

/// All pages, in reading order.
#[rustfmt::skip]
pub(super) const PAGES: &[GuidePage] = &[
    page(README, "first steps, tasks, what to do when something is wrong", include_str!("../../README.md")),
    page("clients", "config files and permissions of each client", include_str!("../guide/clients.md")),
    page("identities", "agent tokens, logins of an identity provider, client certificates", include_str!("../guide/identities.md")),
    page("calls", "intent, direct tool names, resources and prompts, results, protocol revisions", include_str!("../guide/calls.md")),
    page("policy", "Cedar rules, calls that wait for a person, changed tool definitions", include_str!("../guide/policy.md")),
    page("command-line", "every command, its output and its exit code", include_str!("../guide/command_line.md")),
    page("rest", "every route of the REST API", include_str!("../guide/rest.md")),
    page("configuration", "every key of the config, secrets, live reload, crash behavior", include_str!("../guide/configuration.md")),
    page("tls", "TLS, Unix sockets, client certificates", include_str!("../guide/tls.md")),
    page("operation", "service, metrics, alerts, dashboard, traces, logs, repair", include_str!("../guide/operation.md")),
    page("security", "guarantees and limits", include_str!("../guide/security.md")),
    page("fleet", "several nodes with one signed record in an object store", include_str!("../guide/fleet.md")),
    page("fleet-setup", "from one machine to three nodes, step by step", include_str!("../guide/fleet_setup.md")),
    page("fleet-scale", "an estimate of what a fleet of 1000 nodes costs", include_str!("../guide/fleet_scale.md")),
    page("compatibility", "which features work between which clients and servers", include_str!("../guide/compatibility.md")),
    page("speed", "comparison with nginx", include_str!("../guide/speed.md")),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn section_is_found_by_words_of_its_heading() {
        let text = "# P\n\n## First one\na\n```\n## no heading\n```\n### Inner\nb\n## Second\nc\n";
        let page = page("p", "", text);
        let first = "## First one\na\n```\n## no heading\n```\n### Inner\nb\n";
        assert_eq!(page.sections("FIRST"), first);
        assert_eq!(page.sections("inner"), "### Inner\nb\n");
        assert_eq!(page.sections("first-one"), first);
        assert_eq!(page.sections("p"), "", "the page is no section of itself");
        assert_eq!(page.headings(), ["First one", "Second"]);
        assert_eq!(page.similar_section("iner").as_deref(), Some("inner"));
        assert_eq!(page.similar_section("frist one").as_deref(), Some("first-one"));
        assert_eq!(page.similar_section("no heading"), None, "it is code");
    }

    #[test]
    fn every_page_is_embedded_under_the_name_of_its_file() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../guide");
        let mut files: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .map(|file| file.trim_end_matches(".md").replace('_', "-"))
            .collect();
        let names = PAGES.iter().map(|page| page.name.to_owned());
        let mut names: Vec<_> = names.filter(|name| name != README).collect();
        files.sort();
        names.sort();
        assert_eq!(names, files);
        for page in PAGES {
            assert!(page.text.starts_with("# "), "{}", page.name);
        }
    }
}
