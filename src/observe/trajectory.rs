//! The tree of jobs that a workflow ran (`ORD-2`).
//!
//! A flat sort would be wrong: ordinals are a parent's own, and start instants of different
//! parents' children interleave. So the tree is built first, and each parent's children are put in
//! order by themselves.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::text::one_line;
use crate::events::{Event, EventFamily, EventFilter, Observer};
use crate::job::{JobSnapshot, JobState, Metadata, MetadataValue};
use crate::sync::Mutex;

/// Rebuilds the tree of jobs that a workflow runs, from what is told of them.
///
/// Children stand in the order in which their parent called for them: by the ordinal of their step,
/// and within a step by when they started. One that never started comes last in its step, one
/// without an ordinal before the first step. A job whose parent was not heard of, because the
/// subscription began later, stands at the top.
///
/// It keeps one snapshot a job for as long as it lives. Events arrive on the thread of the
/// subscription, so the last ones of a job may come after its handle has answered: read it after a
/// shutdown, or in tests after [`quiesce`](crate::testing::quiesce).
///
/// ```
/// use nucleo_runtime::observe::Trajectory;
/// use nucleo_runtime::testing::quiesce;
/// use nucleo_runtime::{JobDispatcher, JobRequirements, Workflow, doer_fn, job_fn};
/// use std::sync::Arc;
///
/// let dispatcher = JobDispatcher::builder().build()?;
/// dispatcher.start()?;
/// let workflow = Workflow::new("alice", "sums")?;
/// let trajectory = Arc::new(Trajectory::of(workflow.id()));
/// let _subscription = dispatcher.subscribe(trajectory.filter(), trajectory.clone())?;
/// let sum = doer_fn(|context| {
///     let job = |n| job_fn(JobRequirements::none, move |_, _| Ok(n));
///     let a = context.submit_in_step(job(6).named("First"))?.get()?;
///     let b = context.submit_in_step(job(7).named("Second"))?.get()?;
///     Ok(*a * *b)
/// });
/// dispatcher.submit(&workflow, sum.named("Sum"))?.get()?;
/// quiesce(&dispatcher);
/// // Sum  COMPLETED
/// // ├─ 1 First  COMPLETED
/// // └─ 2 Second  COMPLETED
/// println!("{trajectory}");
/// let names: Vec<_> = trajectory
///     .walk()
///     .iter()
///     .map(|node| (node.depth, node.snapshot.display_name().to_owned()))
///     .collect();
/// assert_eq!(names[0], (0, "Sum".to_owned()));
/// assert_eq!(names[1], (1, "First".to_owned()));
/// assert_eq!(names[2], (1, "Second".to_owned()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Trajectory {
    workflow: Arc<str>,
    jobs: Mutex<Jobs>,
}

#[derive(Debug, Default)]
struct Jobs {
    /// In the order in which they were first heard of.
    heard: Vec<JobSnapshot>,
    places: HashMap<Box<str>, usize>,
}

/// A job in the tree.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TrajectoryNode {
    /// The job, as it was last heard of.
    pub snapshot: JobSnapshot,
    /// How many jobs stand above it; 0 for a root.
    pub depth: usize,
    /// The ordinal of its step; `None` for a job that was submitted in none, as roots are.
    pub ordinal: Option<i64>,
    /// Whether it is the last child of its parent.
    pub last: bool,
}

impl TrajectoryNode {
    /// How long the job ran, from the start of its first attempt to its end; `None` while it has
    /// not ended, and for one that never started.
    #[must_use]
    pub fn duration(&self) -> Option<Duration> {
        let (started, ended) = (self.snapshot.started_at()?, self.snapshot.ended_at()?);
        ended.duration_since(started).ok()
    }
}

impl Trajectory {
    /// Of the workflow with this id.
    pub fn of(workflow_id: impl Into<Arc<str>>) -> Self {
        Self {
            workflow: workflow_id.into(),
            jobs: Mutex::default(),
        }
    }

    /// What to subscribe it to.
    pub fn filter(&self) -> EventFilter {
        EventFilter::all()
            .family(EventFamily::Lifecycle)
            .workflow(Arc::clone(&self.workflow))
    }

    /// How many jobs were heard of.
    #[must_use]
    pub fn len(&self) -> usize {
        self.jobs.lock().heard.len()
    }

    /// Whether none was.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tree, depth first.
    #[must_use]
    pub fn walk(&self) -> Vec<TrajectoryNode> {
        let heard = self.jobs.lock().heard.clone();
        depth_first(&heard)
    }
}

impl Observer for Trajectory {
    fn observe(&self, event: &Arc<Event>) {
        let Some(job) = event.snapshot() else { return };
        let before = {
            let mut jobs = self.jobs.lock();
            match jobs.places.get(job.job_id()).copied() {
                // An ended job stays as it ended, whatever is told again.
                Some(place) => jobs
                    .heard
                    .get_mut(place)
                    .filter(|known| known.state().is_active() || job.state().is_terminal())
                    .map(|known| std::mem::replace(known, job.clone())),
                None => {
                    let place = jobs.heard.len();
                    jobs.places.insert(job.job_id().into(), place);
                    jobs.heard.push(job.clone());
                    None
                }
            }
        };
        drop(before);
    }

    fn accepts(&self, event: &Event) -> bool {
        let family = event.family();
        family == EventFamily::Lifecycle
            && event
                .snapshot()
                .is_some_and(|job| job.workflow_id() == &*self.workflow)
    }
}

/// The tree of these jobs, depth first, each parent's children in their order (ORD-2).
fn depth_first(jobs: &[JobSnapshot]) -> Vec<TrajectoryNode> {
    let known: HashMap<&str, usize> = jobs
        .iter()
        .enumerate()
        .map(|(place, job)| (job.job_id(), place))
        .collect();
    let mut tops = Vec::new();
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); jobs.len()];
    for (place, job) in jobs.iter().enumerate() {
        let parent = job.parent_id().and_then(|parent| known.get(parent));
        match parent.and_then(|parent| children.get_mut(*parent)) {
            Some(siblings) => siblings.push(place),
            None => tops.push(place),
        }
    }
    let in_order = |places: &mut Vec<usize>| {
        // Stable, so what is equal stays in the order in which it was heard of.
        places.sort_by(|a, b| match (jobs.get(*a), jobs.get(*b)) {
            (Some(a), Some(b)) => before(a, b),
            _ => Ordering::Equal,
        });
    };
    // A stack and no recursion: a chain of orchestrators may be deep. The next one lies on top.
    let mut stack: Vec<(usize, usize, bool)> = Vec::new();
    let push = |stack: &mut Vec<(usize, usize, bool)>, mut places: Vec<usize>, depth| {
        in_order(&mut places);
        let count = places.len();
        let placed = places.into_iter().enumerate();
        stack.extend(
            placed
                .rev()
                .map(|(at, place)| (place, depth, at + 1 == count)),
        );
    };
    push(&mut stack, tops, 0);
    let mut nodes = Vec::with_capacity(jobs.len());
    while let Some((place, depth, last)) = stack.pop() {
        let Some(job) = jobs.get(place) else { continue };
        nodes.push(TrajectoryNode {
            snapshot: job.clone(),
            depth,
            ordinal: ordinal(job),
            last,
        });
        let below = children.get_mut(place).map(std::mem::take);
        push(&mut stack, below.unwrap_or_default(), depth + 1);
    }
    nodes
}

fn ordinal(job: &JobSnapshot) -> Option<i64> {
    job.metadata()
        .get(Metadata::ITERATION)
        .and_then(MetadataValue::as_integer)
}

/// By ordinal, then by start.
fn before(a: &JobSnapshot, b: &JobSnapshot) -> Ordering {
    let start = |job: &JobSnapshot| -> (bool, Option<SystemTime>) {
        (job.started_at().is_none(), job.started_at())
    };
    (ordinal(a), start(a)).cmp(&(ordinal(b), start(b)))
}

/// A line a job, drawn as a tree: its ordinal, name, state, attempts if several, and duration.
impl fmt::Display for Trajectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // By depth, whether something follows below on that level.
        let mut open: Vec<bool> = Vec::new();
        let mut first = true;
        for node in self.walk() {
            if !std::mem::take(&mut first) {
                writeln!(f)?;
            }
            open.truncate(node.depth);
            // The tops stand at the margin.
            for goes_on in open.iter().skip(1) {
                f.write_str(if *goes_on { "\u{2502}  " } else { "   " })?;
            }
            if node.depth > 0 {
                let branch = if node.last { "\u{2514}" } else { "\u{251c}" };
                write!(f, "{branch}\u{2500} ")?;
            }
            open.push(!node.last);
            if let Some(ordinal) = node.ordinal {
                write!(f, "{ordinal} ")?;
            }
            let job = &node.snapshot;
            write!(f, "{}", one_line(job.display_name()))?;
            if !job.action().is_empty() {
                write!(f, " ({})", one_line(job.action()))?;
            }
            write!(f, "  {}", job.state())?;
            if job.attempt() > 1 {
                write!(f, ", {} attempts", job.attempt())?;
            }
            match node.duration() {
                Some(duration) => write!(f, ", {} ms", duration.as_millis())?,
                None if job.state() == JobState::Running => write!(f, ", still")?,
                None => {}
            }
        }
        Ok(())
    }
}
