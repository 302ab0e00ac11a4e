//! An episode: queues of its own, processes that are started again whenever they end, and what the plan does to them. Then all faults end,
//! what is left is delivered, and the judge is called.

mod deeds;

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use fastrand::Rng;
use posthaste::Tables;
use sqlx::Pool;

use crate::{
    circumstances::{Circumstances, Role, Setup},
    clock::{millis, now, seconds},
    database::Ground,
    disk::Disk,
    evidence,
    faketime::Clock,
    judge::{Complaint, Evidence, Fault, missing},
    points,
    process::{End, Process},
    proxy::{Proxy, Weather},
    report::Counts,
    schedule::Plan,
    server::Server,
};

/// How often processes are looked at.
const LOOK: Duration = Duration::from_millis(10);
/// How long an episode takes at least, before the end: what handlers and producers do by themselves takes its time, too.
const LEAST: u64 = seconds(15);
/// How long to go on until all kill points were reached.
const POINTS_LIMIT: u64 = seconds(90);
/// How long, at the end, nothing may get on: longer than the longest lease.
const STANDSTILL: u64 = seconds(45);
/// When so much went wrong that nobody foresaw, there is no use in going on.
const MOST_ODDITIES: usize = 10;
/// How often to say how far it is.
const SAY_AFTER: u64 = seconds(10);
/// How long a process may take that starts and does nothing else.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How many processes start at once.
const STARTERS: usize = 8;

/// Where an episode takes place.
pub struct Stage<'r, DB: Ground> {
    /// To the server itself.
    pub pool: &'r Pool<DB>,
    /// For the processes: by way of the proxy.
    pub url: &'r str,
    pub server: Option<&'r Server>,
    pub proxy: Option<&'r Proxy>,
    pub clock: &'r Clock,
    pub disk: Option<&'r Disk>,
    pub database: &'r str,
    /// The program of the processes, if it is not posthaste that is tortured.
    pub control: Option<&'r Path>,
    pub folder: &'r Path,
    /// The number of the next process of the run.
    pub next_process: u32,
}

/// A process that is started again whenever it ends.
struct Post {
    role: Role,
    process: Option<Process>,
    /// Not before that: it could not start a moment ago.
    not_before: u64,
    /// A paused one goes on then.
    resume_at: Option<u64>,
}

pub struct Episode<'s, 'r, DB: Ground> {
    stage: &'s mut Stage<'r, DB>,
    plan: &'s Plan,
    tables: Tables,
    folder: PathBuf,
    posts: Vec<Post>,
    /// Kill points that were not reached yet, by those who can reach them.
    worker_points: VecDeque<String>,
    producer_points: VecDeque<String>,
    pub reached: BTreeSet<String>,
    pub faults: Vec<Fault>,
    /// Those of them, by their places, after which there was no worker: they are over when there is one.
    undelivered: Vec<usize>,
    /// Of processes that could not start.
    pub complaints: Vec<Complaint>,
    /// Those of each process that there was.
    leases: HashMap<u32, u64>,
    pub counts: Counts,
    /// What cannot be explained, in words.
    pub oddities: Vec<String>,
}

impl<'s, 'r, DB: Ground> Episode<'s, 'r, DB> {
    pub fn new(stage: &'s mut Stage<'r, DB>, plan: &'s Plan) -> Result<Self> {
        let folder = stage.folder.join(format!("episode-{}", plan.number));
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let post = |role| Post { role, process: None, not_before: 0, resume_at: None };
        let workers = (0..plan.workers).map(|_| post(Role::Worker));
        let posts = workers.chain((0..plan.producers).map(|_| post(Role::Producer))).collect();
        let points = |role| -> VecDeque<String> {
            if plan.points {
                points::of(role, stage.database, &plan.shape).map(str::to_owned).collect()
            } else {
                VecDeque::new()
            }
        };
        Ok(Self {
            tables: plan.tables()?,
            folder,
            posts,
            worker_points: points(Role::Worker),
            producer_points: points(Role::Producer),
            reached: BTreeSet::new(),
            faults: Vec::new(),
            undelivered: Vec::new(),
            complaints: Vec::new(),
            leases: HashMap::new(),
            counts: Counts::default(),
            oddities: Vec::new(),
            stage,
            plan,
        })
    }

    /// Plays it to its end, and returns what is known of it then.
    pub async fn play(&mut self, deadline: u64) -> Result<Evidence> {
        DB::make_tables(self.stage.pool).await?;
        // Nobody else is there to make the tables.
        let posts = std::mem::take(&mut self.posts);
        self.make_outbox().await?;
        self.posts = posts;
        let least = deadline.min(now() + LEAST);
        let (mut said, steps) = (now(), self.plan.steps.len());
        for (done, step) in self.plan.steps.iter().enumerate() {
            if now() > deadline {
                break;
            }
            if now() > said + SAY_AFTER {
                said = now();
                eprintln!("torture: in episode {}, {done} of {steps} deeds are done", self.plan.number);
            }
            self.rest(step.after).await?;
            self.carry_out(step.deed).await?;
            self.rest(step.rest).await?;
        }
        while now() < least {
            self.rest(50).await?;
        }
        let limit = now() + POINTS_LIMIT;
        while self.points_left().next().is_some() && now() < limit {
            self.rest(50).await?;
        }
        let unreached: Vec<_> =
            self.points_left().map(|point| format!("kill point {point} was never reached")).collect();
        self.oddities.extend(unreached);
        self.drain().await
    }

    /// Those that nobody was given yet, and those that somebody has not come to.
    fn points_left(&self) -> impl Iterator<Item = &String> {
        let processes = self.posts.iter().filter_map(|post| post.process.as_ref());
        let armed = processes.filter_map(|process| process.circumstances.kill_at.as_ref());
        self.worker_points.iter().chain(&self.producer_points).chain(armed.map(|(point, _)| point))
    }

    /// The tables of the outbox are made by several at once, some of which are killed over it.
    async fn make_outbox(&mut self) -> Result<()> {
        let points: Vec<&str> = if self.plan.points {
            points::of(Role::Starter, self.stage.database, &self.plan.shape).collect()
        } else {
            Vec::new()
        };
        for point in points {
            let mut starter = self.start(Role::Starter, Some(point.to_owned()), None).await?;
            if self.end_of_start(&mut starter).await? != Some(End::Killed) {
                self.oddities.push(format!("kill point {point} was not reached: {}", starter.complaint()));
            }
            self.note_point(&starter)?;
        }
        self.starters().await
    }

    /// None if it took too long, and was killed for it.
    async fn end_of_start(&mut self, starter: &mut Process) -> Result<Option<End>> {
        match self.meanwhile(tokio::time::timeout(START_LIMIT, starter.wait())).await? {
            Ok(end) => Ok(Some(end?)),
            Err(_) => {
                starter.kill().await?;
                Ok(None)
            }
        }
    }

    async fn starters(&mut self) -> Result<()> {
        let mut starters = Vec::new();
        for _ in 0..STARTERS {
            starters.push(self.start(Role::Starter, None, None).await?);
        }
        for mut starter in starters {
            if self.end_of_start(&mut starter).await? != Some(End::Well) {
                self.could_not_start(&starter);
            }
        }
        self.counts.starters += 1;
        Ok(())
    }

    async fn start(&mut self, role: Role, kill_at: Option<String>, setup: Option<Setup>) -> Result<Process> {
        let process = self.stage.next_process;
        self.stage.next_process += 1;
        // Of itself, not of the order in which processes happen to be started.
        let mut rng = Rng::with_seed(self.plan.seed.rotate_left(32) ^ u64::from(process));
        let mut setup =
            setup.unwrap_or_else(|| Setup::draw(&mut rng, self.plan.misbehaves, self.stage.server.is_some()));
        if self.stage.control.is_some() {
            setup.round_lease();
        }
        let kill_at = kill_at.map(|point| {
            let nth = if points::is_rare(&point) { 1 } else { rng.u32(1..=4) };
            (point, nth)
        });
        self.leases.insert(process, millis(setup.lease_ms));
        let circumstances = Circumstances {
            role,
            process,
            url: self.stage.url.to_owned(),
            prefix: self.plan.prefix(),
            shape: self.plan.shape.clone(),
            history: self.folder.join(format!("{process}.history")),
            kill_at,
            setup,
        };
        let clock = self.stage.server.is_none().then_some(self.stage.clock);
        Process::start(circumstances, self.stage.control, clock).await
    }

    /// Waits, and looks after the processes meanwhile.
    async fn rest(&mut self, ms: u64) -> Result<()> {
        let until = now() + millis(ms);
        loop {
            self.look_after().await?;
            let left = until.saturating_sub(now());
            if left == 0 {
                return Ok(());
            }
            tokio::time::sleep(LOOK.min(Duration::from_micros(left))).await;
        }
    }

    /// Waits for something that takes its time, and looks after the processes meanwhile.
    async fn meanwhile<T>(&mut self, doing: impl Future<Output = T>) -> Result<T> {
        let mut doing = std::pin::pin!(doing);
        loop {
            tokio::select! {
                done = &mut doing => return Ok(done),
                () = tokio::time::sleep(LOOK) => self.look_after().await?,
            }
        }
    }

    /// Every post has a process: what ended is noted, and started again.
    async fn look_after(&mut self) -> Result<()> {
        for place in 0..self.posts.len() {
            let post = &mut self.posts[place];
            if let Some(process) = &mut post.process {
                if post.resume_at.is_some_and(|at| now() >= at) {
                    process.resume();
                    post.resume_at = None;
                }
                let seen = process.seen;
                if let Some(end) = process.ended()? {
                    self.note_end(place, end, seen)?;
                }
            }
            let post = &self.posts[place];
            if post.process.is_none() && now() >= post.not_before {
                let role = post.role;
                let points =
                    if role == Role::Worker { &mut self.worker_points } else { &mut self.producer_points };
                let armed = points.pop_front();
                self.posts[place].process = Some(self.start(role, armed, None).await?);
            }
        }
        if !self.undelivered.is_empty() && self.is_delivered() {
            for place in std::mem::take(&mut self.undelivered) {
                self.faults[place].until = now();
            }
        }
        if self.oddities.len() > MOST_ODDITIES {
            bail!("it cannot go on: {}", self.oddities.join("; "));
        }
        Ok(())
    }

    fn note_point(&mut self, process: &Process) -> Result<bool> {
        let point = process.killed_at()?;
        let was_killed = point.is_some();
        self.counts.point_kills += u64::from(was_killed);
        self.reached.extend(point);
        Ok(was_killed)
    }

    /// A process ended without having been told to.
    fn note_end(&mut self, place: usize, end: End, seen: u64) -> Result<()> {
        let Some(mut process) = self.posts[place].process.take() else { return Ok(()) };
        let is_worker = process.circumstances.role == Role::Worker;
        if end == End::Killed && self.note_point(&process)? {
            if is_worker {
                self.counts.kills += 1;
                self.worker_died("a kill at a kill point", &process, seen);
            }
            return Ok(());
        }
        self.put_back_point(&process);
        if end == End::Failed && !process.is_ready()? {
            // It could not start, and had nothing that others would have to wait for. Soon again.
            self.posts[place].not_before = now() + millis(100);
            self.could_not_start(&process);
            return Ok(());
        }
        self.oddities.push(format!("a process ended by itself ({end:?}): {}", process.complaint()));
        if is_worker {
            self.worker_died("an end", &process, seen);
        }
        Ok(())
    }

    /// The database may be away: the judge knows.
    fn could_not_start(&mut self, process: &Process) {
        let what = format!("a process could not start: {}", process.complaint());
        self.complaints.push(Complaint { from: process.started, until: now(), what });
    }

    /// It did not come to the point that it was to kill itself at.
    fn put_back_point(&mut self, process: &Process) {
        if let Some((point, _)) = &process.circumstances.kill_at {
            match process.circumstances.role {
                Role::Worker => self.worker_points.push_back(point.clone()),
                Role::Producer => self.producer_points.push_back(point.clone()),
                Role::Starter => {}
            }
        }
    }

    /// Nobody gives back what it had until its leases are over; and if it was the last one, until there is another.
    fn worker_died(&mut self, what: &'static str, process: &Process, from: u64) {
        if !self.is_delivered() {
            self.undelivered.push(self.faults.len());
        }
        self.faults.push(Fault::of_one(what, process.number(), process.lease(), from, now()));
    }

    /// Whether there is a worker that has begun and is not paused.
    fn is_delivered(&mut self) -> bool {
        let processes = self.posts.iter_mut().filter_map(|post| post.process.as_mut());
        let mut workers =
            processes.filter(|process| process.circumstances.role == Role::Worker && !process.is_paused);
        workers.any(|worker| worker.is_ready().unwrap_or_default())
    }

    /// In good order, which explains no duplicate.
    async fn stop(&mut self, process: &mut Process) -> Result<()> {
        let from = now();
        process.ask_to_stop();
        match self.meanwhile(tokio::time::timeout(Duration::from_secs(15), process.wait())).await? {
            Ok(end) => match end? {
                End::Well => {}
                End::Killed if process.killed_at()?.is_some() => {}
                End::Failed if !process.is_ready()? => self.could_not_start(process),
                end @ (End::Killed | End::Failed | End::Otherwise(_)) => {
                    self.oddities
                        .push(format!("a process did not stop well ({end:?}): {}", process.complaint()));
                }
            },
            Err(_) => {
                self.oddities.push(format!("process {} did not stop within 15 s", process.number()));
                process.kill().await?;
            }
        }
        let died_at_point = self.note_point(process)?;
        if !died_at_point {
            self.put_back_point(process);
        }
        self.counts.stops += 1;
        let lease = if died_at_point { process.lease() } else { 0 };
        let fault = Fault::of_one("a stop", process.number(), lease, from, now());
        self.faults.push(Fault { explains: died_at_point, ..fault });
        Ok(())
    }

    /// All faults end. What was committed is delivered, by workers that nobody disturbs.
    async fn drain(&mut self) -> Result<Evidence> {
        if let Some(proxy) = self.stage.proxy {
            proxy.cut_no_more();
            proxy.turn(Weather::Fair);
        }
        while self.posts.iter().any(|post| post.resume_at.is_some()) {
            self.rest(20).await?;
        }
        for post in std::mem::take(&mut self.posts) {
            if let Some(mut process) = post.process {
                self.stop(&mut process).await?;
            }
        }
        let mut workers = [
            self.start(Role::Worker, None, Some(Setup::plain())).await?,
            self.start(Role::Worker, None, Some(Setup::plain())).await?,
        ];
        let (mut left, mut since) = (usize::MAX, now());
        let evidence = loop {
            let evidence = self.evidence().await?;
            let still = missing(&evidence);
            if still < left {
                (left, since) = (still, now());
            }
            if still == 0 || now() > since + STANDSTILL {
                break evidence;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        for worker in &mut workers {
            if let Some(end) = worker.ended()? {
                bail!("a worker that nobody disturbed ended ({end:?}): {}", worker.complaint());
            }
            self.stop(worker).await?;
        }
        // Once more: nothing may have come after all was done.
        if left == 0 { self.evidence().await } else { Ok(evidence) }
    }

    async fn evidence(&self) -> Result<Evidence> {
        let Self { stage, plan, tables, folder, leases, faults, complaints, .. } = self;
        let mut evidence = evidence::gather(
            stage.pool,
            tables,
            folder,
            &plan.shape,
            leases.clone(),
            faults.clone(),
            stage.server.is_none(),
        )
        .await?;
        evidence.complaints.extend_from_slice(complaints);
        Ok(evidence)
    }
}
