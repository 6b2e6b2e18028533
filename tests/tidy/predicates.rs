//! Predicates: a function whose name is a question (`is_*`, `has_*`, `was_*`, `may_*`) returns a `bool`, possibly
//! wrapped.
//!
//! The name of a function that changes state begins with a verb: `record_…`, `mark_…`, `set_…`. Tests are not checked,
//! because their names are sentences.

use std::path::Path;

use syn::visit::Visit;

use super::walk;

/// First words of names that announce a `bool`.
const QUESTIONS: &[&str] = &["is", "has", "was", "may", "can", "are", "should"];

/// Folders whose functions are checked.
const FOLDERS: &[&str] = &["src", "tests", "benches", "fuzz/src", "tools"];

/// Visitor that collects functions named like a question without a `bool` in their result.
struct Misnamed<'a> {
    path: &'a str,
    text: &'a str,
    found: Vec<String>,
}

impl Misnamed<'_> {
    fn check(&mut self, attributes: &[syn::Attribute], signature: &syn::Signature) {
        let is_test = |attribute: &syn::Attribute| {
            attribute.path().segments.last().is_some_and(|last| last.ident == "test")
        };
        let name = signature.ident.to_string();
        let first = name.split_once('_').map(|(first, _)| first);
        let is_question = first.is_some_and(|first| QUESTIONS.contains(&first));
        if is_question && !attributes.iter().any(is_test) && !has_bool(&signature.output) {
            let start = format!("fn {name}");
            let line = self.text.lines().position(|line| line.contains(&start)).unwrap_or_default();
            let path = self.path;
            let advice = "name it by what it does";
            self.found.push(format!("{path}:{}: {name} returns no bool: {advice}", line + 1));
        }
    }
}

impl<'ast> Visit<'ast> for Misnamed<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.check(&function.attrs, &function.sig);
        syn::visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.check(&function.attrs, &function.sig);
        syn::visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        self.check(&function.attrs, &function.sig);
        syn::visit::visit_trait_item_fn(self, function);
    }
}

/// True if a return type is or contains a `bool`: `Option<bool>`, `Poll<bool>`, `impl Fn() -> bool`.
fn has_bool(output: &syn::ReturnType) -> bool {
    struct Search(bool);

    impl<'ast> Visit<'ast> for Search {
        fn visit_ident(&mut self, ident: &'ast syn::Ident) {
            self.0 |= ident == "bool";
        }
    }

    let mut search = Search(false);
    search.visit_return_type(output);
    search.0
}

#[expect(clippy::panic, reason = "a source that is no Rust has no functions")]
fn misnamed(path: &str, text: &str) -> Vec<String> {
    let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut visitor = Misnamed { path, text, found: Vec::new() };
    visitor.visit_file(&file);
    visitor.found
}

#[test]
fn functions_named_like_a_question_return_a_bool() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut count, mut found) = (0, Vec::new());
    for folder in FOLDERS {
        walk(root, &root.join(folder), &mut |path, text| {
            if path.ends_with(".rs") {
                count += 1;
                found.extend(misnamed(path, text));
            }
        });
    }
    assert!(count > 100, "only {count} files were read");
    assert!(found.is_empty(), "{} problems:\n{}", found.len(), found.join("\n"));
}

#[test]
fn misnamed_functions_are_reported() {
    for (text, bad) in [
        ("fn is_a() {}", 1),
        ("fn is_a() -> bool { true }", 0),
        ("fn has_a() -> Option<bool> { None }", 0),
        ("async fn may_be_tried() {}", 1),
        ("fn was_read() -> Option<Fault> { None }", 1),
        ("fn is_a() -> impl Fn(&str) -> bool { |_| true }", 0),
        ("impl A { fn was_active(&self) {} fn is_b(&self) -> Poll<bool> { Poll::Pending } }", 1),
        ("trait A { fn has_put(&mut self); }", 1),
        ("fn a() { fn is_inner() {} }", 1),
        ("#[test] fn is_a_sentence() {}", 0),
        ("#[tokio::test] async fn has_a_sentence() {}", 0),
        ("mod tests { fn is_helper() {} }", 1),
        ("fn issue() {} fn may() {} fn hashes_a() {}", 0),
    ] {
        assert_eq!(misnamed("a.rs", text).len(), bad, "{text}");
    }
}
