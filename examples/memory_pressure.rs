//! 500 jobs that take 20 MB each, one arriving every 10 ms, under a budget of 1 GB: with the memory
//! gate, and the same again without it.
//!
//! No job says what it will take. The gate sees what is taken, holds the line and lets it go at a
//! pace; the curve is drawn as it goes. With `--json` the curve goes to standard error and one line
//! of figures to standard output.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nucleo_runtime::admission::memory_source::{AllocatedMemory, CountingAllocator};
use nucleo_runtime::admission::{CountingGate, MemorySource};
use nucleo_runtime::{
    Job, JobContext, JobDispatcher, JobError, JobHandle, JobRequirements, JobResources, Workflow,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const BUDGET: u64 = 1_000_000_000;
const JOBS: u64 = 500;
const TAKES: usize = 20_000_000;
const EVERY: Duration = Duration::from_millis(10);
const WORKS_FOR: Duration = Duration::from_millis(1_500);
/// How many may be at work at once even without the gate: four budgets, so that the run that shows
/// what happens does not happen to the machine.
const AT_WORK: u32 = 200;
/// How often the curve gets a line.
const DRAWN_EVERY: Duration = Duration::from_millis(500);
const BAR: usize = 40;

type AnyError = Box<dyn std::error::Error>;

/// Takes its memory when it starts, and works on it for a while.
struct Work {
    room: Arc<CountingGate>,
    memory: Arc<AllocatedMemory>,
    peak: Arc<AtomicU64>,
}

impl Job for Work {
    type Output = u64;

    fn requirements(&self) -> JobRequirements {
        JobRequirements::none().permit(&self.room)
    }

    fn execute(&mut self, _: &JobResources, context: &JobContext) -> Result<u64, JobError> {
        let taken = vec![1_u8; TAKES];
        let used = self.memory.read()?.used;
        self.peak.fetch_max(used, Ordering::Relaxed);
        context.sleep(WORKS_FOR)?;
        Ok(taken
            .iter()
            .step_by(4_096)
            .map(|byte| u64::from(*byte))
            .sum())
    }
}

struct Figures {
    peak: u64,
    finished: u64,
    took: Duration,
}

impl Figures {
    fn of_budget(&self) -> f64 {
        self.peak as f64 / BUDGET as f64
    }

    fn json(&self) -> String {
        format!(
            r#"{{"peak_bytes":{},"of_budget":{:.3},"finished":{},"seconds":{:.1}}}"#,
            self.peak,
            self.of_budget(),
            self.finished,
            self.took.as_secs_f64()
        )
    }
}

fn run(gated: bool, draw: &dyn Fn(&str)) -> Result<Figures, AnyError> {
    let memory = Arc::new(AllocatedMemory::within(BUDGET)?);
    let builder = JobDispatcher::builder();
    let dispatcher = if gated {
        builder.memory(Arc::clone(&memory))
    } else {
        builder.without_memory_gate()
    }
    .build()?;
    dispatcher.start()?;
    let room = Arc::new(CountingGate::new("room", AT_WORK)?);
    let peak = Arc::new(AtomicU64::new(0));
    let workflow = Workflow::new("alice", "pressure")?;
    let begun = Instant::now();
    let mut handles: Vec<JobHandle<u64>> = Vec::new();
    let mut drawn = begun;
    draw(
        "  time  memory                                              delay  penalty  waiting  released",
    );
    loop {
        if (handles.len() as u64) < JOBS {
            let work = Work {
                room: Arc::clone(&room),
                memory: Arc::clone(&memory),
                peak: Arc::clone(&peak),
            };
            handles.push(dispatcher.submit(&workflow, work)?);
        }
        let finished = handles.iter().filter(|handle| handle.is_settled()).count() as u64;
        if drawn.elapsed() >= DRAWN_EVERY || finished == JOBS {
            drawn = Instant::now();
            draw(&line(&dispatcher, &memory, begun, finished, room.in_use())?);
        }
        if finished == JOBS {
            break;
        }
        thread::sleep(EVERY);
    }
    let took = begun.elapsed();
    let finished = handles.iter().filter(|handle| handle.get().is_ok()).count() as u64;
    dispatcher.shutdown(Duration::from_secs(5))?;
    Ok(Figures {
        peak: peak.load(Ordering::Relaxed),
        finished,
        took,
    })
}

/// One line of the curve.
fn line(
    dispatcher: &JobDispatcher,
    source: &AllocatedMemory,
    begun: Instant,
    finished: u64,
    at_work: u32,
) -> Result<String, AnyError> {
    let ratio = source.read()?.ratio();
    let filled = ((ratio * BAR as f64) as usize).min(BAR);
    let (delay, penalty) = match dispatcher.admission().memory() {
        Some(gate) => (
            format!("{} ms", gate.pacing.as_millis()),
            format!("x{:.1}", gate.penalty),
        ),
        None => ("-".to_owned(), "-".to_owned()),
    };
    Ok(format!(
        "{:5.1}s  {}{} {:4.0} %  {delay:>9}  {penalty:>7}  {:7}  {:8}",
        begun.elapsed().as_secs_f64(),
        "#".repeat(filled),
        ".".repeat(BAR - filled),
        ratio * 100.0,
        dispatcher.admission().queue_len(),
        finished + u64::from(at_work),
    ))
}

fn main() -> Result<(), AnyError> {
    let json = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--json") => true,
        Some(other) => return Err(format!("'{other}' is not known; there is --json").into()),
    };
    let draw = |line: &str| {
        if json {
            eprintln!("{line}");
        } else {
            println!("{line}");
        }
    };
    draw("with the memory gate");
    let with = run(true, &draw)?;
    draw("without it");
    let without = run(false, &draw)?;
    let holds = with.of_budget() <= 1.1 && with.finished == JOBS && without.finished == JOBS;
    if json {
        println!(
            r#"{{"budget_bytes":{BUDGET},"jobs":{JOBS},"with":{},"without":{},"ok":{holds}}}"#,
            with.json(),
            without.json()
        );
    } else {
        for (name, figures) in [("with the gate", &with), ("without it", &without)] {
            println!(
                "{name}: peak {:.0} MB, {:.2} of the budget; {} of {JOBS} finished in {:.1} s",
                figures.peak as f64 / 1e6,
                figures.of_budget(),
                figures.finished,
                figures.took.as_secs_f64()
            );
        }
    }
    if holds {
        Ok(())
    } else {
        Err("the gate did not keep the run within 1.1 of its budget".into())
    }
}
