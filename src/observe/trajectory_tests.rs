//! The order of the tree.

use std::sync::Arc;
use std::time::Duration;

use super::Trajectory;
use crate::events::{Observer, sample};
use crate::job::snapshot::Moment;
use crate::job::{JobSnapshot, JobState, Metadata};

const FLOW: &str = "w-1";

/// A job under `parent`, in this step, started that many seconds in.
fn job(
    name: &'static str,
    parent: Option<&JobSnapshot>,
    step: Option<i64>,
    start: Option<u64>,
) -> JobSnapshot {
    let snapshot = sample::sample_snapshot(name, FLOW);
    let mut profile = snapshot.profile.as_ref().clone();
    if let Some(parent) = parent {
        profile.ids = parent.profile.ids.of_child(name);
    }
    let mut metadata = Metadata::new();
    if let Some(step) = step {
        metadata.insert(Metadata::ITERATION, step);
    }
    let mut moment = Moment::fresh(metadata);
    moment.started_at = start.map(|start| sample::at() + Duration::from_secs(start));
    JobSnapshot {
        profile: Arc::new(profile),
        moment: Arc::new(moment),
    }
}

fn told_of(jobs: &[JobSnapshot]) -> Trajectory {
    let trajectory = Trajectory::of(FLOW);
    for job in jobs {
        trajectory.observe(&Arc::new(sample::started(job, 1)));
    }
    trajectory
}

fn names(trajectory: &Trajectory) -> Vec<(usize, String)> {
    trajectory
        .walk()
        .iter()
        .map(|node| (node.depth, node.snapshot.type_name().to_owned()))
        .collect()
}

// case ORD-04
#[test]
fn each_parents_children_stand_by_ordinal_and_then_by_start() {
    let root = job("root", None, None, Some(0));
    let one = job("one", Some(&root), Some(1), Some(50));
    let two_late = job("two-late", Some(&root), Some(2), Some(30));
    let two_early = job("two-early", Some(&root), Some(2), Some(20));
    let two_never = job("two-never", Some(&root), Some(2), None);
    // Ordinals are a parent's own: 1 here is after 2 there.
    let below_one = job("below-one", Some(&two_early), Some(1), Some(60));
    let unstamped = job("unstamped", Some(&root), None, Some(99));
    let second_root = job("second-root", None, None, Some(5));
    let trajectory = told_of(&[
        second_root,
        two_never,
        two_late,
        below_one,
        unstamped,
        root,
        two_early,
        one,
    ]);
    let expected = [
        (0, "root"),
        (1, "unstamped"),
        (1, "one"),
        (1, "two-early"),
        (2, "below-one"),
        (1, "two-late"),
        (1, "two-never"),
        (0, "second-root"),
    ];
    assert_eq!(
        names(&trajectory),
        expected.map(|(depth, name)| (depth, name.to_owned()))
    );
}

#[test]
fn a_job_whose_parent_was_not_heard_of_stands_at_the_top() {
    let root = job("root", None, None, Some(0));
    let child = job("child", Some(&root), Some(1), Some(1));
    assert_eq!(names(&told_of(&[child])), [(0, "child".to_owned())]);
}

#[test]
fn a_job_stands_as_it_was_last_heard_of() {
    let queued = job("root", None, None, None);
    let ended = queued.derive(JobState::Completed, 2, "done");
    let trajectory = told_of(&[queued, ended]);
    assert_eq!(trajectory.len(), 1);
    assert_eq!(trajectory.walk()[0].snapshot.state(), JobState::Completed);
}

#[test]
fn it_reads_as_a_tree() {
    let root = job("Report", None, None, Some(0));
    let mut done = job("Plan", Some(&root), Some(1), Some(1));
    Arc::make_mut(&mut done.moment).ended_at = Some(sample::at() + Duration::from_secs(3));
    let branch = job("Gather", Some(&root), Some(2), Some(3));
    let leaf = job("Fetch", Some(&branch), Some(1), Some(4));
    let last = job("Write", Some(&root), Some(3), None);
    let trajectory = told_of(&[root, done, branch, leaf, last]);
    assert_eq!(
        trajectory.to_string(),
        "\
Report  QUEUED
\u{251c}\u{2500} 1 Plan  QUEUED, 2000 ms
\u{251c}\u{2500} 2 Gather  QUEUED
\u{2502}  \u{2514}\u{2500} 1 Fetch  QUEUED
\u{2514}\u{2500} 3 Write  QUEUED"
    );
}
