//! Private copies of Debian's packages: downloaded by an apt that has its own folders, unpacked (not installed) into a
//! cache with every library they need, and run through their own dynamic loader. Nothing of the system changes, no service
//! is started, and no root is needed.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use nix::unistd::geteuid;

use super::{
    apt,
    home::{check_own_folder, make_own_folder},
};
use crate::{
    failure::{Context, Failure, Result},
    interrupt,
};

/// Signs the archive; apt refuses what it did not sign.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Which of Debian's suites a package comes from.
#[derive(Debug, Clone, Copy)]
pub enum Suite {
    /// The one that this system is.
    Own,
    /// The one that everything comes to first.
    Unstable,
}

/// An unpacked package with all it needs.
pub struct PrivateCopy {
    pub root: PathBuf,
}

impl PrivateCopy {
    /// The copy of a package, fetched first if it is not there yet.
    pub fn of(what: &str, package: &str, suite: Suite, else_variable: &str) -> Result<Self> {
        // Not under the home folder: the unprivileged user must be able to read it.
        let cache = PathBuf::from(format!("/var/tmp/posthaste-cache-{}", geteuid()));
        let root = cache.join(package);
        if root.exists() {
            check_own_folder(&cache)?;
            return Ok(Self { root });
        }
        let by_hand = format!("or name a server in {else_variable}");
        if !apt::has_apt() || !Path::new(KEYRING).is_file() {
            return Err(Failure::CannotRun(format!("{what} is not installed here: install it, {by_hand}")));
        }
        let suite = match suite {
            Suite::Own => codename(),
            Suite::Unstable => "sid".to_owned(),
        };
        eprintln!(
            "xtask: {what} is not installed here; fetching a private copy from Debian {suite} to {}",
            root.display()
        );
        make_own_folder(&cache)?;
        let work = tempfile::Builder::new()
            .prefix("fetching-")
            .tempdir_in(&cache)
            .or_cannot(|| format!("make a folder in {}", cache.display()))?;
        fetch(work.path(), package, &suite).map_err(|failure| match failure {
            Failure::CannotRun(why) => Failure::CannotRun(format!(
                "cannot fetch {what}: {why}; try again later, install it, {by_hand}"
            )),
            other => other,
        })?;
        // Whole or not at all; if another process was faster, its copy is as good.
        let unpacked = work.path().join("root");
        match fs::rename(&unpacked, &root) {
            Err(_) if root.exists() => Ok(Self { root }),
            renamed => renamed.map(|()| Self { root }).or_cannot(|| format!("keep {}", unpacked.display())),
        }
    }

    /// How to run one of its programs: by the dynamic loader and with the libraries that came with it.
    pub fn command(&self, program: &str) -> Result<Vec<OsString>> {
        let root = &self.root;
        let incomplete = || {
            Failure::CannotRun(format!(
                "the private copy in {} is incomplete: remove the folder, try again",
                root.display()
            ))
        };
        let find = |folder: &str, wanted: fn(&str) -> bool| {
            let names = fs::read_dir(root.join(folder)).ok()?.flatten().map(|entry| entry.path());
            names.into_iter().find(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(wanted))
        };
        let is_loader = |name: &str| name.starts_with("ld-linux");
        let loader =
            find("usr/lib64", is_loader).or_else(|| find("usr/lib", is_loader)).ok_or_else(incomplete)?;
        let libraries = find("usr/lib", |name| name.contains("-linux-gnu")).ok_or_else(incomplete)?;
        let program = root.join(program);
        if !program.is_file() {
            return Err(incomplete());
        }
        let mut path = OsString::from(&libraries);
        path.push(":");
        path.push(root.join("usr/lib"));
        let arguments = [
            "--inhibit-cache".into(),
            "--argv0".into(),
            program.clone().into(),
            "--library-path".into(),
            path,
        ];
        Ok([vec![loader.into()], arguments.to_vec(), vec![program.into()]].concat())
    }
}

/// Downloads the packages with an apt of its own in `work`, and unpacks them to `work/root`.
fn fetch(work: &Path, package: &str, suite: &str) -> Result<()> {
    let configuration = write_apt_configuration(work, suite)?;
    let apt_get = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .env("APT_CONFIG", &configuration)
            .env("TMPDIR", work.join("tmp"))
            .arg("--quiet=2")
            .args(arguments);
        run_quietly(&mut command, "apt-get")
    };
    apt_get(&["--option", "APT::Update::Error-Mode=any", "update"])?;
    apt_get(&["--yes", "--no-install-recommends", "--download-only", "install", package])?;

    let root = work.join("root");
    for folder in ["bin", "sbin", "lib", "lib64"] {
        // The layout that the packages expect; base-files is not among them.
        let path = root.join("usr").join(folder);
        fs::create_dir_all(&path).or_cannot(|| format!("make {}", path.display()))?;
        let link = root.join(folder);
        std::os::unix::fs::symlink(Path::new("usr").join(folder), &link)
            .or_cannot(|| format!("link {}", link.display()))?;
    }
    let archives = work.join("cache/archives");
    for entry in fs::read_dir(&archives).or_cannot(|| format!("read {}", archives.display()))?.flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "deb") {
            unpack(&entry.path(), &root)?;
        }
    }
    Ok(())
}

fn unpack(package: &Path, root: &Path) -> Result<()> {
    let doing = || format!("unpack {}", package.display());
    let mut files = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(package)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .or_cannot(doing)?;
    let stream = files.stdout.take().map_or_else(Stdio::null, Stdio::from);
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--keep-directory-symlink", "--no-same-owner", "--directory"])
        .arg(root)
        .stdin(stream);
    let unpacked = run_quietly(&mut tar, "tar");
    let read = files.wait().or_cannot(doing)?;
    unpacked?;
    if read.success() { Ok(()) } else { Err(Failure::CannotRun(format!("cannot {}: {read}", doing()))) }
}

/// An apt that knows nothing of this system but its mirror and its proxy: as if nothing were installed, so that
/// every library comes along, and without the system's hooks.
fn write_apt_configuration(work: &Path, suite: &str) -> Result<PathBuf> {
    for folder in ["etc/parts", "state/lists/partial", "cache/archives/partial", "log", "tmp"] {
        let path = work.join(folder);
        fs::create_dir_all(&path).or_cannot(|| format!("make {}", path.display()))?;
    }
    let write = |name: &str, text: &str| {
        let path = work.join(name);
        fs::write(&path, text).or_cannot(|| format!("write {}", path.display())).map(|()| path)
    };
    write("status", "")?;
    write("etc/sources.list", &format!("deb [signed-by={KEYRING}] {} {suite} main\n", mirror()?))?;
    let at = work.display();
    let mut text = format!(
        "Dir::State \"{at}/state\"; Dir::State::lists \"{at}/state/lists\"; Dir::State::status \"{at}/status\";\n\
         Dir::Cache \"{at}/cache\"; Dir::Cache::archives \"{at}/cache/archives\";\n\
         Dir::Cache::pkgcache \"\"; Dir::Cache::srcpkgcache \"\"; Dir::Log \"{at}/log\";\n\
         Dir::Etc::main \"{at}/none\"; Dir::Etc::parts \"{at}/etc/parts\";\n\
         Dir::Etc::sourcelist \"{at}/etc/sources.list\"; Dir::Etc::sourceparts \"{at}/etc/parts\";\n\
         Dir::Etc::preferences \"{at}/none\"; Dir::Etc::preferencesparts \"{at}/etc/parts\";\n\
         Dir::Etc::trusted \"{at}/none\"; Dir::Etc::trustedparts \"{at}/etc/parts\";\n\
         APT::Sandbox::User \"\"; Acquire::Languages \"none\"; Acquire::GzipIndexes \"true\"; Acquire::Retries \"3\";\n"
    );
    for line in output_of(&mut Command::new("apt-config"), &["dump"])?.lines() {
        if ["Acquire::http", "Acquire::ForceIPv4", "Acquire::Check-Valid-Until"]
            .iter()
            .any(|name| line.starts_with(name))
        {
            text.push_str(line);
            text.push('\n');
        }
    }
    write("apt.conf", &text)
}

/// The mirror that this system itself uses.
fn mirror() -> Result<String> {
    let format =
        ["indextargets", "--no-release-info", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"];
    let targets = output_of(&mut Command::new("apt-get"), &format)?;
    let codename = codename();
    targets
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find_map(|(mirror, suite)| (suite == codename).then(|| mirror.to_owned()))
        .ok_or_else(|| Failure::CannotRun("this system's apt sources name no Debian mirror".to_owned()))
}

fn codename() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).unwrap_or_default().to_owned()
}

/// Runs to the end without a word; what it complained of last is the error.
fn run_quietly(command: &mut Command, name: &str) -> Result<()> {
    let mut complaints = tempfile::tempfile().or_cannot(|| "make a temporary file".to_owned())?;
    let stderr = complaints.try_clone().or_cannot(|| "use a temporary file".to_owned())?;
    let status = interrupt::wait(command.stdout(Stdio::null()).stderr(stderr))?;
    if status.success() {
        return Ok(());
    }
    let mut text = String::new();
    std::io::Seek::rewind(&mut complaints).ok();
    std::io::Read::read_to_string(&mut complaints, &mut text).ok();
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    Err(Failure::CannotRun(format!("{name} failed ({status}): {last}")))
}

fn output_of(command: &mut Command, arguments: &[&str]) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.args(arguments).output().or_cannot(|| format!("run {name}"))?;
    interrupt::check()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
