//! What a node believes of the objects in the store, and what it puts there, step by step.

use super::super::fact_set::tests::node;
use super::super::fact_set::{Fact, FactKind};
use super::super::fact_turns::MAX_ROUND_READS;
use super::*;

fn listed(name: &str, state: u64) -> ListedFacts {
    ListedFacts { key: format!("{SAID}/{name}"), size: 10, state: state.to_string().into() }
}

/// It is not known who lives.
fn nobody(_: &NodeName) -> bool {
    false
}

fn token(set: &FactSet) -> Option<&str> {
    set.get(FactKind::Token, "t").and_then(Fact::value)
}

/// What a node says at two times: that there is a token, and that it is revoked.
fn two_of_b() -> [FactObject; 2] {
    let b = node("b");
    let mut facts = FactSet::default();
    facts.say(&b, FactKind::Token, "t", "1").unwrap();
    let first = FactObject { number: 1, facts: facts.clone() };
    facts.end(&b, FactKind::Token, "t");
    [first, FactObject { number: 2, facts }]
}

fn reader() -> FactReader {
    FactReader::new(node("a"), BTreeMap::new(), BTreeSet::new(), true)
}

#[test]
fn a_revocation_that_is_put_back_is_told_and_stays_after_a_restart() {
    let ([first, second], b) = (two_of_b(), node("b"));
    let (mut reader, mut set) = (reader(), FactSet::default());
    assert!(reader.take((&b, "1"), Ok(first.clone()), &mut set));
    assert_eq!(token(&set), Some("1"));
    assert!(reader.take((&b, "2"), Ok(second), &mut set));
    assert_eq!(token(&set), None);
    let mut again = FactReader::new(node("a"), reader.numbers().clone(), BTreeSet::new(), false);
    for reader in [&mut reader, &mut again] {
        assert!(!reader.take((&b, "3"), Ok(first.clone()), &mut set));
        let older = FactFault::Older { read: 1, known: 2 };
        assert_eq!(reader.faults().values().collect::<Vec<_>>(), [&older]);
        assert_eq!(token(&set), None);
    }
    // Even for who remembers the facts and not the numbers.
    let mut without = FactReader::new(node("a"), BTreeMap::new(), BTreeSet::new(), false);
    assert!(!without.take((&b, "3"), Ok(first), &mut set));
    assert_eq!(token(&set), None);
}

#[test]
fn what_is_as_it_was_is_not_read_again_and_what_cannot_be_read_changes_nothing() {
    let ([first, _], b) = (two_of_b(), node("b"));
    let (mut reader, mut set) = (reader(), FactSet::default());
    let wanted = reader.wanted(&[listed("b", 1)], true, nobody);
    assert_eq!(wanted, [(b.clone(), listed("b", 1))]);
    reader.take((&b, "1"), Ok(first), &mut set);
    assert_eq!(reader.wanted(&[listed("b", 1)], true, nobody), []);
    assert_eq!(reader.wanted(&[listed("b", 2)], true, nobody).len(), 1);
    for fault in [NotOpened::NotAuthentic, NotOpened::OtherFleet, NotOpened::Foreign] {
        assert!(!reader.take((&b, "2"), Err(fault.into()), &mut set));
        assert_eq!(reader.faults()["facts/said/b"], FactFault::Sealed(fault));
    }
    let huge = ListedFacts { size: 100 << 20, ..listed("b", 3) };
    let foreign = listed("b/c", 1);
    assert_eq!(reader.wanted(&[huge, foreign], true, nobody), []);
    assert_eq!(reader.faults()["facts/said/b"], FactFault::TooLong(100 << 20));
    assert_eq!(reader.faults()[SAID].to_string(), "one thing there is no node's: b/c");
    assert_eq!(reader.wanted(&[], true, nobody), []);
    assert_eq!(reader.faults()["facts/said/b"], FactFault::Removed);
    assert_eq!(token(&set), Some("1"));
}

#[test]
fn what_is_no_node_s_is_one_fault_and_hides_no_node_that_is_known() {
    let ([first, _], b) = (two_of_b(), node("b"));
    let (mut reader, mut set) = (reader(), FactSet::default());
    reader.wanted(&[listed("b", 1)], true, nobody);
    reader.take((&b, "1"), Ok(first), &mut set);
    let mut foreign: Vec<_> = (0..300).map(|at| listed(&format!("X{at:03}"), 1)).collect();
    assert_eq!(reader.wanted(&foreign, true, nobody), []);
    assert_eq!(reader.faults().len(), 2, "all of them, and that one was removed");
    let told = reader.faults()[SAID].to_string();
    assert!(told.starts_with("300 things there are no node's: X000, X001"), "{told}");
    assert_eq!(reader.faults()["facts/said/b"], FactFault::Removed);
    // As many as can be, all of them before those that are known.
    foreign.extend((0..MAX_NODES).map(|at| listed(&format!("0{at}"), 1)));
    foreign.push(listed("a", 1));
    foreign.push(listed("b", 2));
    let wanted = reader.wanted(&foreign, true, nobody);
    let names: Vec<_> = wanted.iter().map(|(node, _)| node.as_str()).take(3).collect();
    assert_eq!((names, wanted.len()), (vec!["a", "b", "00"], MAX_ROUND_READS + 1));
    let told = reader.faults()[SAID].to_string();
    assert!(told.starts_with("more than 4096 names of nodes stand there"), "{told}");
    assert!(told.contains("(302 things there are no node's: X000, "), "{told}");
    // One that lives is no stranger, though nothing of it was read yet.
    let lives = |node: &NodeName| node.as_str() == "z";
    foreign.push(listed("z", 1));
    let wanted = reader.wanted(&foreign, true, lives);
    let names: Vec<_> = wanted.iter().map(|(node, _)| node.as_str()).take(3).collect();
    assert_eq!(names, ["a", "z", "b"]);
    // Where it is cut, nobody was removed, and the node's own is asked for all the same.
    foreign.truncate(300);
    let wanted = reader.wanted(&foreign, false, nobody);
    assert_eq!(wanted.iter().map(|(node, _)| node.as_str()).collect::<Vec<_>>(), ["a"]);
    let told: Vec<_> = reader.faults().values().map(ToString::to_string).collect();
    assert!(told.len() == 1 && told[0].starts_with("more than 5120 objects"), "{told:?}");
    assert_eq!(reader.wanted(&foreign, false, nobody).len(), 1, "each time");
}

#[test]
fn all_is_read_only_where_nothing_was_left_out_for_want_of_room_or_of_time() {
    let (mut reader, mut set) = (reader(), FactSet::default());
    let empty = FactObject { number: 1, facts: FactSet::default() };
    let many = (0..MAX_ROUND_READS + 2).map(|at| listed(&format!("n{at:02}"), 1));
    let many: Vec<_> = many.collect();
    let first = reader.wanted(&many, true, nobody);
    assert_eq!(first.len(), MAX_ROUND_READS);
    for (node, listed) in &first[1..] {
        reader.take((node, &listed.state), Ok(empty.clone()), &mut set);
    }
    // There was no time for one of them.
    reader.not_asked(&first[0].0);
    assert!(!reader.has_read_all() && reader.is_behind());
    let why = reader.unheard();
    assert_eq!(why.as_deref(), Some("3 of the objects in facts/said are still to be read"));
    let rest = reader.wanted(&many, true, nobody);
    assert_eq!(rest.len(), 3);
    for (node, listed) in &rest[1..] {
        reader.take((node, &listed.state), Ok(empty.clone()), &mut set);
    }
    // The store does not give one of them.
    reader.not_read(&rest[0].0, &rest[0].1, &"it hangs");
    assert!(!reader.has_read_all() && !reader.is_behind());
    assert!(reader.unheard().unwrap().ends_with(": it cannot be read: it hangs"));
    for (node, listed) in reader.wanted(&many, true, nobody) {
        reader.take((&node, &listed.state), Ok(empty.clone()), &mut set);
    }
    assert!(reader.has_read_all() && reader.unheard().is_none());
    // More are there than are listed, or than there can be nodes.
    assert_eq!(reader.wanted(&many, false, nobody).len(), 1);
    reader.own_is_missing();
    let why = reader.unheard().unwrap();
    assert!(!reader.has_read_all() && why.contains("more than 5120 objects lie there"), "{why}");
    let names: Vec<_> = (0..=MAX_NODES).map(|at| listed(&at.to_string(), 1)).collect();
    reader.wanted(&names, true, nobody);
    let why = reader.unheard().unwrap();
    assert!(why.contains("more than 4096 names") && why.contains("remove what is no"), "{why}");
    // It is put right.
    for _ in 0..2 {
        for (node, listed) in reader.wanted(&many, true, nobody) {
            reader.take((&node, &listed.state), Ok(empty.clone()), &mut set);
        }
    }
    assert!(reader.has_read_all());
}

#[test]
fn a_read_that_was_older_than_the_listing_is_done_once_more() {
    let ([first, second], b) = (two_of_b(), node("b"));
    let (mut reader, mut set) = (reader(), FactSet::default());
    // The listing has the second one already, the read not.
    assert_eq!(reader.wanted(&[listed("b", 2)], true, nobody).len(), 1);
    reader.take((&b, "2"), Ok(first), &mut set);
    assert_eq!(token(&set), Some("1"));
    let mut asked = Vec::new();
    for round in 1..40 {
        if !reader.wanted(&[listed("b", 2)], true, nobody).is_empty() {
            reader.take((&b, "2"), Ok(second.clone()), &mut set);
            asked.push(round);
        }
    }
    assert_eq!((asked, token(&set)), (vec![LOOK_AGAIN - 1], None));
}

#[test]
fn what_cannot_be_read_is_asked_for_again_ever_less_often_until_it_is_another() {
    let ([first, _], b) = (two_of_b(), node("b"));
    let (mut reader, mut set) = (reader(), FactSet::default());
    let mut asked = Vec::new();
    for round in 0..80 {
        for (node, listed) in reader.wanted(&[listed("b", 1)], true, nobody) {
            reader.not_read(&node, &listed, &"it hangs");
            asked.push(round);
        }
        assert_eq!(reader.faults()["facts/said/b"].to_string(), "it cannot be read: it hangs");
    }
    assert_eq!(asked, [0, 1, 3, 7, 15, 31, 47, 63, 79]);
    assert_eq!(reader.wanted(&[listed("b", 2)], true, nobody).len(), 1, "it is another");
    assert!(reader.take((&b, "2"), Ok(first), &mut set));
    assert!(reader.faults().is_empty());
    assert_eq!(reader.wanted(&[listed("b", 3)], true, nobody).len(), 1);
}

#[test]
fn what_the_store_does_not_say_is_put_until_it_does() {
    let a = node("a");
    let (mut reader, mut set) = (reader(), FactSet::default());
    reader.wanted(&[], true, nobody);
    assert_eq!(reader.to_put(&set), None, "there is nothing to say");
    set.say(&a, FactKind::Token, "t", "1").unwrap();
    assert!(!reader.says(&set));
    let object = reader.to_put(&set).unwrap();
    assert_eq!(object.number, 1);
    reader.has_put(&object);
    reader.wanted(&[listed("a", 1)], true, nobody);
    reader.take((&a, "1"), Ok(object.clone()), &mut set);
    assert!(reader.says(&set) && reader.to_put(&set).is_none() && reader.faults().is_empty());
    // Something else lies there, which nobody reads.
    let huge = ListedFacts { size: 100 << 20, ..listed("a", 2) };
    reader.wanted(&[huge], true, nobody);
    assert!(!reader.says(&set));
    reader.take((&a, "1"), Ok(object.clone()), &mut set);
    assert!(reader.says(&set) && reader.to_put(&set).is_none());
    // It was removed, and the store forgets what it takes.
    for number in 2..=4 {
        reader.wanted(&[], true, nobody);
        let again = reader.to_put(&set).unwrap();
        assert_eq!((again.number, &again.facts), (number, &object.facts));
        reader.has_put(&again);
    }
    assert_eq!(reader.faults()["facts/said/a"], FactFault::Unkept);
    // It was put back to an older one, which says something else.
    reader.wanted(&[listed("a", 5)], true, nobody);
    let older = FactObject { number: 1, facts: FactSet::default() };
    reader.take((&a, "5"), Ok(older), &mut set);
    assert_eq!(reader.to_put(&set).unwrap().number, 5);
}

#[test]
fn a_node_of_the_same_name_is_told_and_a_lost_memory_is_none() {
    let a = node("a");
    let mut facts = FactSet::default();
    facts.say(&a, FactKind::Token, "t", "1").unwrap();
    let theirs = FactObject { number: 9, facts };
    let (mut forgot, mut set) = (reader(), FactSet::default());
    assert!(forgot.take((&a, "1"), Ok(theirs.clone()), &mut set));
    assert!(forgot.faults().is_empty() && forgot.to_put(&set).is_none());
    set.say(&a, FactKind::Token, "u", "1").unwrap();
    assert_eq!(forgot.to_put(&set).unwrap().number, 10);
    let mut knows = FactReader::new(a.clone(), [(a.clone(), 3)].into(), BTreeSet::new(), false);
    knows.take((&a, "1"), Ok(theirs), &mut FactSet::default());
    assert_eq!(knows.faults()["facts/said/a"], FactFault::Twin);
}

#[test]
fn what_is_sealed_by_an_older_key_is_put_again_and_that_of_who_is_gone_as_well() {
    let ([_, gone], [a, b]) = (two_of_b(), ["a", "b"].map(node));
    let (mut reader, mut set) = (reader(), FactSet::default());
    set.say(&a, FactKind::Token, "u", "1").unwrap();
    let own = FactObject { number: 1, facts: set.clone() };
    reader.opened(&a, false, &own);
    reader.take((&a, "1"), Ok(own), &mut set);
    reader.opened(&b, false, &gone);
    reader.take((&b, "1"), Ok(gone.clone()), &mut set);
    assert!(!reader.says(&set) && !reader.is_said_again("facts/said/b"));
    let put = reader.to_put(&set).unwrap();
    assert_eq!(put.facts.said_by(&b), gone.facts);
    // As a new node reads it, with the newer key alone.
    let read = FactObject::read(&put.write(&a), &a).unwrap();
    assert_eq!(read, put);
    let mut new = FactReader::new(node("c"), BTreeMap::new(), BTreeSet::new(), true);
    let mut known = FactSet::default();
    new.opened(&a, true, &read);
    new.take((&a, "2"), Ok(read), &mut known);
    assert_eq!((token(&known), known.said_by(&b)), (None, gone.facts.clone()));
    assert!(new.is_said_again("facts/said/b") && !new.is_said_again("facts/said/a"));
    assert_eq!(new.to_put(&known), None);
    // It is there, and the node itself comes back.
    reader.has_put(&put);
    reader.opened(&a, true, &put);
    reader.take((&a, "2"), Ok(put), &mut set);
    assert!(reader.says(&set) && reader.to_put(&set).is_none());
    reader.opened(&b, true, &gone);
    assert_eq!(reader.to_put(&set).unwrap().facts.said_by(&b).len(), 0);
}

#[test]
fn what_is_said_again_for_who_is_gone_outlasts_the_own_object_and_a_restart() {
    let ([_, gone], [a, b, c]) = (two_of_b(), ["a", "b", "c"].map(node));
    let (mut reader, mut set) = (reader(), FactSet::default());
    set.say(&a, FactKind::Token, "u", "1").unwrap();
    let own = FactObject { number: 1, facts: set.clone() };
    reader.opened(&b, false, &gone);
    reader.take((&b, "1"), Ok(gone.clone()), &mut set);
    assert_eq!(reader.to_put(&set).unwrap().facts.said_by(&b), gone.facts);
    let (numbers, said_again) = (reader.numbers().clone(), reader.said_again().clone());
    let start = || FactReader::new(a.clone(), numbers.clone(), said_again.clone(), false);
    let says = |put: Option<FactObject>| put.map(|put| put.facts.said_by(&b) == gone.facts);
    // It has the newer key alone now, and what lies there of its own is by the older one.
    let mut again = start();
    assert_eq!(again.wanted(&[listed("a", 1), listed("c", 1)], true, nobody).len(), 2);
    again.take((&a, "1"), Err(NotOpened::NotAuthentic.into()), &mut set);
    // Its own goes out before it is known what others say.
    assert_eq!(says(again.to_put(&set)), Some(false));
    let nothing = FactObject { number: 1, facts: FactSet::default() };
    again.opened(&c, true, &nothing);
    again.take((&c, "1"), Ok(nothing), &mut set);
    assert_eq!(says(again.to_put(&set)), Some(true));
    // An older one by the newer key is put back.
    again.opened(&a, true, &own);
    again.take((&a, "2"), Ok(own), &mut set);
    assert_eq!(says(again.to_put(&set)), Some(true));
    assert!(!again.is_said_again("facts/said/b"), "it is not in the store yet");
    // Where it cannot all be read it is said after some rounds.
    let mut again = start();
    for round in 0..=SETTLED_AFTER {
        for (node, listed) in again.wanted(&[listed("c", 1)], true, nobody) {
            again.not_read(&node, &listed, &"it hangs");
        }
        assert_eq!(says(again.to_put(&set)), Some(round == SETTLED_AFTER), "{round}");
    }
}

#[test]
fn whose_facts_have_no_room_is_told_unless_another_says_them() {
    let [b, gone] = ["b", "gone"].map(node);
    let mut reader = reader();
    let (facts, left_out) = (FactSet::default(), BTreeSet::from([gone.clone()]));
    assert_eq!(reader.puts_said(SaidFacts { facts, left_out }), None);
    assert_eq!(reader.left_out().collect::<Vec<_>>(), [&gone]);
    let mut facts = FactSet::default();
    facts.say(&gone, FactKind::Token, "t", "1").unwrap();
    reader.opened(&b, true, &FactObject { number: 1, facts });
    assert_eq!(reader.left_out().count(), 0);
}
