//! MySQL: an installed one, one in `POSTHASTE_MYSQL_BIN`, or a private copy from Debian's unstable suite.
//!
//! Debian's stable releases have no MySQL. The unstable one's programs and all the libraries they need are downloaded
//! by an apt that has its own folders, unpacked (not installed) into a cache, and run through their own dynamic
//! loader: nothing of the system changes, and no root is needed. The suite moves, so this may fail some day; then it
//! says so, and a server can be named instead.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use nix::unistd::geteuid;

use super::{
    Engine, apt,
    home::{Place, check_own_folder, make_own_folder},
    mysql_family, process, program_in, version,
};
use crate::{
    database::Database,
    failure::{Context, Failure, Result},
    interrupt,
};

/// A folder with MySQL's programs.
const BIN_VARIABLE: &str = "POSTHASTE_MYSQL_BIN";
/// Signs the archive; apt refuses what it did not sign.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const SUITE: &str = "sid";
const PACKAGE: &str = "mysql-server-core";

pub struct Mysql {
    /// What comes before mysqld's own arguments: the program, or the loader that runs it.
    program: Vec<OsString>,
    /// Where the private copy is, which mysqld must be told.
    root: Option<PathBuf>,
    version: String,
}

impl Mysql {
    pub fn locate() -> Result<Self> {
        if let Some(folder) = std::env::var_os(BIN_VARIABLE).map(PathBuf::from) {
            let server = program_in(&folder, "mysqld", BIN_VARIABLE)?;
            return Self::new(vec![server.into()], None);
        }
        if let Some(server) = mysql_family::find_program("mysqld").filter(|server| !is_mariadb(server)) {
            return Self::new(vec![server.into()], None);
        }
        let root = private_copy()?;
        Self::new(through_its_loader(&root)?, Some(root))
    }

    fn new(program: Vec<OsString>, root: Option<PathBuf>) -> Result<Self> {
        let mut command = Command::new(&program[0]);
        let version = version::check(
            Database::Mysql,
            command.args(&program[1..]).args(["--no-defaults", "--version"]),
        )?;
        Ok(Self { program, root, version })
    }

    fn with_settings(&self, settings: Vec<OsString>) -> Vec<OsString> {
        let mut command = self.program.clone();
        command.push("--no-defaults".into());
        if let Some(root) = &self.root {
            command.push(mysql_family::path_setting("--basedir=", &root.join("usr")));
            command.push(mysql_family::path_setting("--lc-messages-dir=", &root.join("usr/share/mysql")));
            command.push(mysql_family::path_setting(
                "--character-sets-dir=",
                &root.join("usr/share/mysql/charsets"),
            ));
            command.push(mysql_family::path_setting("--plugin-dir=", &root.join("usr/lib/mysql/plugin")));
        }
        command.extend(
            ["--mysqlx=0", "--secure-file-priv=NULL", "--innodb-redo-log-capacity=64M"].map(Into::into),
        );
        command.extend(settings);
        command
    }
}

/// MariaDB's packages install a `mysqld` too.
fn is_mariadb(server: &Path) -> bool {
    Command::new(server)
        .arg("--version")
        .output()
        .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("MariaDB"))
}

impl Engine for Mysql {
    fn database(&self) -> Database {
        Database::Mysql
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn initialise(&self, place: &Place) -> Result<()> {
        mysql_family::write_start_file(place)?;
        let mut settings = mysql_family::data_settings(place);
        settings.push("--initialize-insecure".into());
        process::prepare(&self.with_settings(settings), place, "make a MySQL data folder")
    }

    fn command(&self, place: &Place, port: u16) -> Vec<OsString> {
        self.with_settings(mysql_family::settings(place, port))
    }

    fn ready_line(&self) -> &'static str {
        mysql_family::READY_LINE
    }

    fn url(&self, port: u16) -> String {
        mysql_family::url(port)
    }
}

/// The unpacked private copy, fetched first if it is not there yet.
fn private_copy() -> Result<PathBuf> {
    // Not under the home folder: the unprivileged user must be able to read it.
    let cache = PathBuf::from(format!("/var/tmp/posthaste-cache-{}", geteuid()));
    let root = cache.join("mysql");
    if root.exists() {
        check_own_folder(&cache)?;
        return Ok(root);
    }
    let by_hand = "or name a server in POSTHASTE_TEST_MYSQL_URL";
    if !apt::has_apt() || !Path::new(KEYRING).is_file() {
        return Err(Failure::CannotRun(format!("MySQL is not installed here: install mysqld, {by_hand}")));
    }
    eprintln!(
        "xtask: MySQL is not installed here; fetching a private copy from Debian {SUITE} to {}",
        root.display()
    );
    make_own_folder(&cache)?;
    let work = tempfile::Builder::new()
        .prefix("fetching-")
        .tempdir_in(&cache)
        .or_cannot(|| format!("make a folder in {}", cache.display()))?;
    fetch(work.path()).map_err(|failure| match failure {
        Failure::CannotRun(why) => Failure::CannotRun(format!(
            "cannot fetch MySQL: {why}; try again later, install mysqld, {by_hand}"
        )),
        other => other,
    })?;
    // Whole or not at all; if another process was faster, its copy is as good.
    let unpacked = work.path().join("root");
    match fs::rename(&unpacked, &root) {
        Err(_) if root.exists() => Ok(root),
        renamed => renamed.map(|()| root).or_cannot(|| format!("keep {}", unpacked.display())),
    }
}

/// Downloads the packages with an apt of its own in `work`, and unpacks them to `work/root`.
fn fetch(work: &Path) -> Result<()> {
    let configuration = write_apt_configuration(work)?;
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
    apt_get(&["--yes", "--no-install-recommends", "--download-only", "install", PACKAGE])?;

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
fn write_apt_configuration(work: &Path) -> Result<PathBuf> {
    for folder in ["etc/parts", "state/lists/partial", "cache/archives/partial", "log", "tmp"] {
        let path = work.join(folder);
        fs::create_dir_all(&path).or_cannot(|| format!("make {}", path.display()))?;
    }
    let write = |name: &str, text: &str| {
        let path = work.join(name);
        fs::write(&path, text).or_cannot(|| format!("write {}", path.display())).map(|()| path)
    };
    write("status", "")?;
    write("etc/sources.list", &format!("deb [signed-by={KEYRING}] {} {SUITE} main\n", mirror()?))?;
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
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename =
        release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).unwrap_or_default();
    targets
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find_map(|(mirror, suite)| (suite == codename).then(|| mirror.to_owned()))
        .ok_or_else(|| Failure::CannotRun("this system's apt sources name no Debian mirror".to_owned()))
}

/// How to run the private mysqld: by the dynamic loader and with the libraries that came with it.
fn through_its_loader(root: &Path) -> Result<Vec<OsString>> {
    let incomplete = || {
        Failure::CannotRun(format!(
            "the private MySQL in {} is incomplete: remove the folder, try again",
            root.display()
        ))
    };
    let find = |folder: &str, wanted: fn(&str) -> bool| {
        let entries = fs::read_dir(root.join(folder)).ok()?;
        entries
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.file_name().and_then(|n| n.to_str()).is_some_and(wanted))
    };
    let is_loader = |name: &str| name.starts_with("ld-linux");
    let loader =
        find("usr/lib64", is_loader).or_else(|| find("usr/lib", is_loader)).ok_or_else(incomplete)?;
    let libraries = find("usr/lib", |name| name.contains("-linux-gnu")).ok_or_else(incomplete)?;
    let server = root.join("usr/sbin/mysqld");
    if !server.is_file() {
        return Err(incomplete());
    }
    let mut path = OsString::from(&libraries);
    path.push(":");
    path.push(root.join("usr/lib"));
    Ok(vec![
        loader.into(),
        "--inhibit-cache".into(),
        "--argv0".into(),
        server.clone().into(),
        "--library-path".into(),
        path,
        server.into(),
    ])
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
