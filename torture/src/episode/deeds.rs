//! What is done to an episode: each deed, what is counted of it, and the fault that the judge is told of.

use std::time::SystemTime;

use anyhow::{Context, Result, bail};

use super::Episode;
use crate::{
    clock::{millis, now, seconds},
    database::Ground,
    evidence::PAUSE,
    judge::Fault,
    process::Process,
    proxy::Weather,
    schedule::Deed,
};

/// What is armed with a kill point is left alone for this long: some are reached rarely.
const ARMED: u64 = seconds(8);
/// By then a worker has begun, whatever was done to it.
const STARTED: u64 = seconds(60);
/// How long a server may take to come back by itself.
const PATIENCE: u64 = seconds(3);
/// By then everybody knows that a connection was cut.
const CUT: u64 = millis(200);
/// The most seconds by which two clocks that agree may differ: they are read one after the other.
const CLOCK_SLACK: i64 = 3;

impl<DB: Ground> Episode<'_, '_, DB> {
    /// The place of the worker that a deed is for: those that wait for their kill point get the time to reach it.
    /// One that has not begun yet would not mind.
    fn worker(&mut self, wanted: usize) -> Result<Option<usize>> {
        for other in 0..self.plan.workers {
            let place = (wanted + other) % self.plan.workers;
            if let Some(process) = self.posts.get_mut(place).and_then(|post| post.process.as_mut()) {
                let is_armed = process.circumstances.kill_at.is_some() && now() < process.started + ARMED;
                if !is_armed && !process.is_paused && process.is_ready()? {
                    return Ok(Some(place));
                }
            }
        }
        Ok(None)
    }

    /// The same, if need be after a while.
    async fn await_worker(&mut self, wanted: usize) -> Result<usize> {
        let limit = now() + STARTED;
        loop {
            if let Some(place) = self.worker(wanted)? {
                return Ok(place);
            }
            if now() > limit {
                bail!("no worker has begun for {} s", STARTED / seconds(1));
            }
            self.rest(20).await?;
        }
    }

    pub(super) async fn carry_out(&mut self, deed: Deed) -> Result<()> {
        match deed {
            Deed::Kill { worker } => {
                let place = self.await_worker(worker).await?;
                if let Some(mut process) = self.posts[place].process.take() {
                    let from = now();
                    process.kill().await?;
                    if !self.note_point(&process)? {
                        self.put_back_point(&process);
                    }
                    self.counts.kills += 1;
                    self.worker_died("a kill", &process, from);
                }
            }
            Deed::KillProducer { producer } => {
                if let Some(mut process) = self.posts[self.plan.workers + producer].process.take() {
                    process.kill().await?;
                    if !self.note_point(&process)? {
                        self.put_back_point(&process);
                    }
                    self.counts.producer_kills += 1;
                }
            }
            Deed::Pause { worker, past_lease_ms } => {
                let place = self.await_worker(worker).await?;
                self.pause(place, past_lease_ms);
            }
            Deed::Stop { worker } => {
                let place = self.await_worker(worker).await?;
                if let Some(mut process) = self.posts[place].process.take() {
                    self.stop(&mut process).await?;
                }
            }
            Deed::Starters => self.starters().await?,
            Deed::Crash => {
                let from = now();
                self.meanwhile(self.stage.server.context("there is no server to crash")?.crash()).await??;
                self.counts.crashes += 1;
                let fault = Fault::of_all("a crash of the server", from, now());
                // Others have given to the system what they have answered.
                self.faults.push(Fault { forgets: self.stage.database == "postgres", ..fault });
            }
            Deed::Promote { both_for_ms } => {
                let server = self.stage.server.context("there is no server to replace")?;
                let from = self.meanwhile(server.replace(both_for_ms)).await??;
                DB::lead_to(self.stage.pool, &server.url())?;
                self.stage.proxy.context("there is no proxy")?.lead_to(server.address()?);
                self.counts.promotions += 1;
                let fault = Fault::of_all("a promotion of the standby", from, now());
                self.faults.push(Fault { forgets: true, ..fault });
            }
            Deed::FillDisk { ms } => {
                let from = now();
                let ballast =
                    self.meanwhile(self.stage.disk.context("there is no disk to fill")?.fill()).await??;
                self.counts.full_disks += 1;
                self.rest(ms).await?;
                drop(ballast);
                self.await_answer().await?;
                let fault = Fault::of_all("a full disk", from, now());
                self.faults.push(Fault { forgets: true, ..fault });
            }
            Deed::Clock { ahead } => {
                let from = now();
                self.stage.clock.set(ahead)?;
                if self.stage.server.is_some() {
                    self.check_clock(ahead).await?;
                }
                self.counts.clock_jumps += 1;
                // Whatever leases there are may last as long again, and no longer.
                let processes = self.posts.iter().filter_map(|post| post.process.as_ref());
                let lease = processes.map(Process::lease).max().unwrap_or_default();
                let fault = Fault::of_all("a jump of the clock", from, now());
                self.faults.push(Fault { lease, ..fault });
            }
            Deed::Sessions { most } => {
                let from = now();
                let ended = DB::end_sessions(self.stage.pool, most.into()).await?;
                self.counts.sessions += u64::try_from(ended).unwrap_or_default();
                self.faults.push(Fault::of_all("sessions that were ended", from, now()));
            }
            Deed::Cut { cut, count } => {
                let proxy = self.stage.proxy.context("there is no proxy")?;
                proxy.cut(cut, count);
                let limit = now() + seconds(45);
                while proxy.has_cuts_left() && now() < limit {
                    self.rest(20).await?;
                }
                proxy.cut_no_more();
                let cuts = proxy.take_cuts();
                self.counts.cuts += u64::try_from(cuts.len())?;
                if let (Some(first), Some(last)) = (cuts.first(), cuts.last()) {
                    let fault = Fault::of_all("cuts at COMMIT", *first, *last + CUT);
                    self.faults.push(Fault { moments: cuts, ..fault });
                }
            }
            Deed::Weather { weather, ms } => {
                let (proxy, from) = (self.stage.proxy.context("there is no proxy")?, now());
                proxy.turn(weather);
                self.rest(ms).await?;
                proxy.turn(Weather::Fair);
                self.counts.weathers += 1;
                self.faults.push(Fault::of_all("bad weather", from, now()));
            }
            Deed::Reset => {
                self.stage.proxy.context("there is no proxy")?.reset();
                self.counts.weathers += 1;
                self.faults.push(Fault::of_all("a reset of all connections", now(), now()));
            }
        }
        Ok(())
    }

    /// What is to have jumped must say so itself.
    async fn check_clock(&self, ahead: i64) -> Result<()> {
        let machine = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs().cast_signed();
        let off = DB::clock(self.stage.pool).await? - machine - ahead;
        if off.abs() > CLOCK_SLACK {
            bail!("the clock of the database is {off} s from what it was set to");
        }
        Ok(())
    }

    /// A server that has had enough is started again, as its keeper would.
    async fn await_answer(&mut self) -> Result<()> {
        let limit = now() + PATIENCE;
        while !DB::answers(self.stage.pool).await {
            if let Some(server) = self.stage.server.filter(|_| now() > limit) {
                self.meanwhile(server.crash()).await??;
            }
            if now() > limit + seconds(60) {
                bail!("the database does not come back");
            }
            self.rest(100).await?;
        }
        Ok(())
    }

    fn pause(&mut self, place: usize, past_lease_ms: u64) {
        let post = &mut self.posts[place];
        let Some(process) = &mut post.process else { return };
        process.pause();
        let (from, number, lease) = (now(), process.number(), process.lease());
        let until = from + lease + millis(past_lease_ms);
        post.resume_at = Some(until);
        self.counts.pauses += 1;
        let fault = Fault::of_one(PAUSE, number, lease, from, until);
        let fault = if self.stage.server.is_none() {
            // Whoever is paused while it writes keeps all others from it. If that took them too long, they have noticed it themselves.
            let of_all = "a pause of whoever may be writing";
            self.faults.push(Fault { what: of_all, process: None, explains: false, ..fault.clone() });
            Fault { others_since: Some(from), lease: 0, recovery: 0, ..fault }
        } else if self.is_delivered() {
            // What it has in a transaction is given up by the server, which takes a little longer.
            Fault { others_since: Some(from), recovery: seconds(5), ..fault }
        } else {
            fault
        };
        self.faults.push(fault);
    }
}
