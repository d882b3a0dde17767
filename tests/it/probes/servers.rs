//! Real servers for the tests that need them: started in a folder of their own, on a free port; never skipped.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

use super::super::support::{eventually, exit_within, free_port};
use crate::support::PATIENCE;

/// The password of every server here.
pub(super) const PASSWORD: &str = "s3cret";

/// How to start a server in a folder, on a port.
type Starter = dyn Fn(&Path, u16) -> Command;

/// A server process, the folder it lives in, and the port it listens on.
pub(super) struct Server {
    pub(super) port: u16,
    pub(super) folder: TempDir,
    child: Option<Child>,
    start: Box<Starter>,
    stop: Signal,
}

impl Server {
    /// An empty PostgreSQL whose superuser `postgres` has [`PASSWORD`].
    pub(super) fn postgres(flags: &'static [&'static str]) -> Server {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let owner = unprivileged(folder.path());
        let password = folder.path().join("password");
        fs::write(&password, PASSWORD).expect("our own folder");
        let data = folder.path().join("data");
        let mut command = Command::new(postgres_program("initdb"));
        command
            .arg("-D")
            .arg(&data)
            .args(["-U", "postgres", "-A", "scram-sha-256", "--no-sync", "--pwfile"])
            .arg(password);
        owner.run(&mut command).stdout(Stdio::null());
        assert!(command.status().expect("initdb runs").success(), "initdb failed");
        let program = postgres_program("postgres");
        let start = move |folder: &Path, port: u16| {
            let mut command = Command::new(&program);
            owner
                .run(&mut command)
                .arg("-D")
                .arg(folder.join("data"))
                .args(["-p", &port.to_string(), "-k"])
                .arg(folder);
            command.args(["-F", "-c", "listen_addresses=127.0.0.1", "-c", "shared_buffers=8MB"]).args(flags);
            command
        };
        // SIGINT is its fast shutdown: it does not wait for its clients.
        Server { port: free_port(), folder, child: None, start: Box::new(start), stop: Signal::INT }
    }

    /// An empty Redis with [`PASSWORD`].
    pub(super) fn redis() -> Server {
        let program = find("redis-server", &["/usr/bin", "/usr/local/bin", "/usr/sbin"]);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let start = move |folder: &Path, port: u16| {
            let mut command = Command::new(&program);
            command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir"]).arg(folder);
            command.args(["--save", "", "--appendonly", "no", "--requirepass", PASSWORD]);
            command
        };
        Server { port: free_port(), folder, child: None, start: Box::new(start), stop: Signal::TERM }
    }

    /// Starts it, and waits until it takes connections.
    pub(super) fn up(mut self) -> Server {
        self.start();
        self
    }

    pub(super) fn start(&mut self) {
        let log = File::options().create(true).append(true).open(self.log()).expect("our own folder");
        let mut command = (self.start)(self.folder.path(), self.port);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a file")).stderr(log);
        self.child = Some(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")));
        let port = self.port;
        eventually("the server takes connections", || {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().expect("our own child"));
            assert!(ended.is_none(), "the server ended: {}", fs::read_to_string(self.log()).unwrap_or_default());
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
    }

    /// Ends it in order.
    pub(super) fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        kill_process(Pid::from_child(&child), self.stop).expect("our own child");
        exit_within(&mut child, PATIENCE);
    }

    /// Stops all of it without its knowledge, as pausing its container does: the kernel still takes connections.
    pub(super) fn pause(&self) {
        let server = self.pid();
        kill_process(server, Signal::STOP).expect("our own child");
        for child in children(server) {
            // One that ends meanwhile is as still as can be.
            let _ = kill_process(child, Signal::STOP);
        }
    }

    pub(super) fn resume(&self) {
        let server = self.pid();
        for child in children(server) {
            let _ = kill_process(child, Signal::CONT);
        }
        kill_process(server, Signal::CONT).expect("our own child");
    }

    /// Processes of the server, itself included.
    pub(super) fn processes(&self) -> usize {
        1 + children(self.pid()).len()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(self.child.as_ref().expect("it runs"))
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.resume();
            self.stop();
        }
    }
}

/// Who a server runs as: PostgreSQL refuses root.
#[derive(Clone, Copy)]
pub(super) struct Owner(Option<(u32, u32)>);

impl Owner {
    fn run(self, command: &mut Command) -> &mut Command {
        if let Owner(Some((user, group))) = self {
            command.uid(user).gid(group);
        }
        command
    }

    /// Gives it a file that nobody else may read.
    pub(super) fn give(self, file: &Path) {
        fs::set_permissions(file, fs::Permissions::from_mode(0o600)).expect("our own file");
        if let Owner(Some((user, group))) = self {
            chown(file, Some(user), Some(group)).expect("root may");
        }
    }
}

/// The user `postgres` if we are root, else ourselves; `folder` becomes its own.
pub(super) fn unprivileged(folder: &Path) -> Owner {
    if !geteuid().is_root() {
        return Owner(None);
    }
    let id = |flag| {
        let output = Command::new("id").args([flag, "postgres"]).output().expect("id runs");
        let text = String::from_utf8(output.stdout).expect("a number");
        text.trim().parse::<u32>().expect("there is a user postgres")
    };
    let (user, group) = (id("-u"), id("-g"));
    chown(folder, Some(user), Some(group)).expect("root may");
    Owner(Some((user, group)))
}

fn postgres_program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").map(|entries| {
        let mut found: Vec<_> = entries.flatten().map(|entry| entry.path().join("bin").join(name)).collect();
        found.retain(|path| path.exists());
        found.sort();
        found.pop()
    });
    versions.ok().flatten().unwrap_or_else(|| find(name, &["/usr/bin", "/usr/local/bin", "/usr/local/pgsql/bin"]))
}

/// A test that needs a server fails where there is none.
fn find(name: &str, folders: &[&str]) -> PathBuf {
    let found = folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is not installed: looked in {folders:?}"))
}

fn children(parent: Pid) -> Vec<Pid> {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    ids.filter(|id| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        // The name before it may hold anything, even a bracket.
        let fields = stat.rsplit(") ").next().unwrap_or_default();
        fields.split(' ').nth(1) == Some(&parent.as_raw_nonzero().to_string())
    })
    .filter_map(Pid::from_raw)
    .collect()
}
