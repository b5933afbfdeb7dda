//! What a slow subscriber costs the jobs: nothing, if publishing never waits.
//!
//! Runs the same jobs again and again, in turns without a subscriber and with one that takes 10 ms
//! an event, and compares how long a job takes from its submission to its result. The queue of the
//! slow one grows with the events that it has not come to; what is left at the end is dropped.
//!
//! ```sh
//! cargo run --release --example slow_subscriber
//! cargo run --release --example slow_subscriber -- --events 100000 --json
//! ```

use std::error::Error;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lexopt::prelude::*;
use nucleo_runtime::events::{Event, EventFilter};
use nucleo_runtime::{JobContext, JobDispatcher, JobRequirements, Workflow, job_fn};

const HELP: &str = "\
Compares jobs without a subscriber and with one that is slow.

Usage: slow_subscriber [OPTIONS]

  --events N    how many events to publish in each kind of turn (default: 20000)
  --work-us N   how long a job computes, in microseconds (default: 1000)
  --delay-ms N  how long the subscriber takes for an event (default: 10)
  --turns N     how many turns of each kind (default: 10)
  --json        print one line of JSON on stdout
  --help        print this";

/// What a job publishes: scheduled, started, progress, completed, and the workflow's end.
const EVENTS_A_JOB: u64 = 5;

struct Options {
    events: u64,
    work: Duration,
    delay: Duration,
    turns: u64,
    json: bool,
}

/// How long the jobs of one kind of turn took, and what became of their events.
#[derive(Default)]
struct Turns {
    took: Vec<Duration>,
    heard: u64,
    /// Published and never heard of.
    left: u64,
    dropped: u64,
}

impl Turns {
    fn percentile(&self, percent: usize) -> Duration {
        let place = (self.took.len() * percent / 100).min(self.took.len().saturating_sub(1));
        self.took.get(place).copied().unwrap_or_default()
    }
}

fn main() -> ExitCode {
    match parse().and_then(|options| options.map_or(Ok(()), |options| run(&options))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse() -> Result<Option<Options>, Box<dyn Error>> {
    let mut options = Options {
        events: 20_000,
        work: Duration::from_millis(1),
        delay: Duration::from_millis(10),
        turns: 10,
        json: false,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("events") => options.events = parser.value()?.parse()?,
            Long("work-us") => options.work = Duration::from_micros(parser.value()?.parse()?),
            Long("delay-ms") => options.delay = Duration::from_millis(parser.value()?.parse()?),
            Long("turns") => options.turns = parser.value()?.parse::<u64>()?.max(1),
            Long("json") => options.json = true,
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(None);
            }
            other => return Err(format!("{}; see --help", other.unexpected()).into()),
        }
    }
    Ok(Some(options))
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let jobs = (options.events / EVENTS_A_JOB / options.turns).max(1);
    let (mut alone, mut watched) = (Turns::default(), Turns::default());
    // Not counted: the first threads and pages of a process cost more.
    turn(options, jobs, false, &mut Turns::default())?;
    for number in 1..=options.turns {
        eprintln!("turn {number} of {}", options.turns);
        turn(options, jobs, false, &mut alone)?;
        turn(options, jobs, true, &mut watched)?;
    }
    alone.took.sort_unstable();
    watched.took.sort_unstable();
    let ratio = watched.percentile(50).as_secs_f64() / alone.percentile(50).as_secs_f64();
    let micros = |duration: Duration| duration.as_nanos() as f64 / 1_000.0;
    for (name, turns) in [("without", &alone), ("with", &watched)] {
        eprintln!(
            "{name:>8}: {} jobs, p50 {:.1} us, p99 {:.1} us; heard {}, left {}, dropped {}",
            turns.took.len(),
            micros(turns.percentile(50)),
            micros(turns.percentile(99)),
            turns.heard,
            turns.left,
            turns.dropped,
        );
    }
    eprintln!("p50 with a slow subscriber: {ratio:.3} of that without");
    if options.json {
        println!(
            "{{\"jobs\":{},\"events\":{},\"p50_us_without\":{:.1},\"p50_us_with\":{:.1},\
             \"ratio\":{ratio:.4},\"heard\":{},\"left\":{},\"dropped\":{}}}",
            watched.took.len(),
            watched.took.len() as u64 * EVENTS_A_JOB,
            micros(alone.percentile(50)),
            micros(watched.percentile(50)),
            watched.heard,
            watched.left,
            watched.dropped,
        );
    }
    Ok(())
}

/// One turn on a dispatcher of its own: each job is submitted when the one before has answered.
fn turn(
    options: &Options,
    jobs: u64,
    watch: bool,
    turns: &mut Turns,
) -> Result<(), Box<dyn Error>> {
    let dispatcher = JobDispatcher::builder().build()?;
    let heard = Arc::new(AtomicU64::new(0));
    let over = Arc::new(AtomicBool::new(false));
    if watch {
        let (heard, over, delay) = (Arc::clone(&heard), Arc::clone(&over), options.delay);
        let slow = move |_: &Arc<Event>| {
            if !over.load(Ordering::Relaxed) {
                std::thread::sleep(delay);
                heard.fetch_add(1, Ordering::Relaxed);
            }
        };
        let slow = dispatcher.subscribe(EventFilter::all(), Arc::new(slow))?;
        slow.detach();
    }
    dispatcher.start()?;
    let workflow = Workflow::new("example", "slow-subscriber")?;
    for _ in 0..jobs {
        let work = options.work;
        let job = job_fn(JobRequirements::none, move |_, context: &JobContext| {
            context.publish("working", Some(50));
            compute(work);
            Ok(())
        });
        let began = Instant::now();
        dispatcher.submit(&workflow, job)?.get()?;
        turns.took.push(began.elapsed());
    }
    for status in dispatcher.bus().subscriptions() {
        turns.left += status.waiting;
        turns.dropped += status.dropped;
    }
    turns.heard += heard.load(Ordering::Relaxed);
    // What is left goes quickly, and none of it in the time of the next turn.
    over.store(true, Ordering::Relaxed);
    dispatcher.shutdown(Duration::from_secs(5))?;
    Ok(())
}

fn compute(span: Duration) {
    let began = Instant::now();
    let mut n = 0_u64;
    while began.elapsed() < span {
        n = black_box(n.wrapping_mul(31).wrapping_add(7));
    }
}
