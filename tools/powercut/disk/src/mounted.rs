//! The disk as the kernel sees it: each call of a program becomes one of [`Disk`].

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;

use crate::model::{Disk, File, Folder, Node, Number, Refused, What};

/// How long the kernel may keep names and attributes. Nobody changes them behind its back.
const KEPT: Duration = Duration::from_secs(3600);

const BLOCK: u64 = 4096;

/// A mounted disk; clones are the same one.
#[derive(Clone)]
pub struct Mounted(pub Arc<Mutex<Disk>>);

fn errno(refused: Refused) -> Errno {
    match refused {
        Refused::NoPower => Errno::EIO,
        Refused::Missing => Errno::ENOENT,
        Refused::Exists => Errno::EEXIST,
        Refused::NotAFolder => Errno::ENOTDIR,
        Refused::IsAFolder => Errno::EISDIR,
        Refused::NotEmpty => Errno::ENOTEMPTY,
        Refused::Full => Errno::ENOSPC,
    }
}

fn attributes(number: Number, node: &Node) -> FileAttr {
    let (kind, size, nlink) = match &node.what {
        What::File(file) => (FileType::RegularFile, file.live.len() as u64, 1),
        What::Folder(_) => (FileType::Directory, BLOCK, 2),
    };
    // Times are not kept: nothing may depend on them.
    let at = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(number),
        size,
        blocks: size.div_ceil(512),
        atime: at,
        mtime: at,
        ctime: at,
        crtime: at,
        kind,
        perm: node.mode,
        nlink,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK as u32,
        flags: 0,
    }
}

impl Mounted {
    fn attributes(&self, number: Number) -> Result<FileAttr, Refused> {
        Ok(attributes(number, self.0.lock().node(number)?))
    }

    fn create(&self, parent: INodeNo, name: &OsStr, what: What, mode: u32) -> Result<FileAttr, Refused> {
        let mut disk = self.0.lock();
        let number = disk.create(parent.0, name, what, (mode & 0o7777) as u16)?;
        Ok(attributes(number, disk.node(number)?))
    }

    fn change(&self, number: Number, mode: Option<u32>, size: Option<u64>) -> Result<FileAttr, Refused> {
        let mut disk = self.0.lock();
        if let Some(mode) = mode {
            disk.set_mode(number, (mode & 0o7777) as u16)?;
        }
        if let Some(size) = size {
            disk.set_length(number, size as usize)?;
        }
        Ok(attributes(number, disk.node(number)?))
    }

    fn done(result: Result<(), Refused>, reply: ReplyEmpty) {
        match result {
            Ok(()) => reply.ok(),
            Err(refused) => reply.error(errno(refused)),
        }
    }
}

fn entry(found: Result<FileAttr, Refused>, reply: ReplyEntry) {
    match found {
        Ok(attributes) => reply.entry(&KEPT, &attributes, Generation(0)),
        Err(refused) => reply.error(errno(refused)),
    }
}

fn attr(found: Result<FileAttr, Refused>, reply: ReplyAttr) {
    match found {
        Ok(attributes) => reply.attr(&KEPT, &attributes),
        Err(refused) => reply.error(errno(refused)),
    }
}

impl Filesystem for Mounted {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let number = self.0.lock().look_up(parent.0, name);
        entry(number.and_then(|number| self.attributes(number)), reply);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        attr(self.attributes(ino.0), reply);
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        attr(self.change(ino.0, mode, size), reply);
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        entry(self.create(parent, name, What::Folder(Folder::default()), mode & !umask), reply);
    }

    fn mknod(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, _: u32, reply: ReplyEntry) {
        entry(self.create(parent, name, What::File(File::default()), mode & !umask), reply);
    }

    fn create(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, _: i32, reply: ReplyCreate) {
        let created = self.create(parent, name, What::File(File::default()), mode & !umask);
        match created.and_then(|attributes| self.0.lock().open(attributes.ino.0).map(|()| attributes)) {
            Ok(attributes) => reply.created(&KEPT, &attributes, Generation(0), FileHandle(0), FopenFlags::empty()),
            Err(refused) => reply.error(errno(refused)),
        }
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        Self::done(self.0.lock().remove(parent.0, name, false), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        Self::done(self.0.lock().remove(parent.0, name, true), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        Self::done(self.0.lock().rename((parent.0, name), (newparent.0, newname)), reply);
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.0.lock().open(ino.0) {
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::empty()),
            Err(refused) => reply.error(errno(refused)),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.0.lock().file(ino.0) {
            Ok(file) => {
                let from = file.live.len().min(offset as usize);
                reply.data(&file.live[from..file.live.len().min(from + size as usize)]);
            }
            Err(refused) => reply.error(errno(refused)),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.0.lock().write(ino.0, offset as usize, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(refused) => reply.error(errno(refused)),
        }
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.0.lock().close(ino.0);
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        Self::done(self.0.lock().sync_file(ino.0), reply);
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        Self::done(self.0.lock().sync_folder(ino.0), reply);
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        // Only what lengthens the file: holes and the like are for programs that ask whether they are there.
        if mode != 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        Self::done(self.0.lock().lengthen(ino.0, (offset + length) as usize), reply);
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let disk = self.0.lock();
        let folder = match disk.folder(ino.0) {
            Ok(folder) => folder,
            Err(refused) => return reply.error(errno(refused)),
        };
        let dots = [(ino.0, OsStr::new(".")), (ino.0, OsStr::new(".."))];
        let names = dots.into_iter().chain(folder.live.iter().map(|(name, number)| (*number, name.as_os_str())));
        for (at, (number, name)) in names.enumerate().skip(offset as usize) {
            let kind = match disk.folder(number) {
                Ok(_) => FileType::Directory,
                Err(_) => FileType::RegularFile,
            };
            if reply.add(INodeNo(number), at as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let (all, free) = self.0.lock().space();
        let (all, free) = (all / BLOCK, free / BLOCK);
        reply.statfs(all, free, free, 1 << 20, 1 << 20, BLOCK as u32, 255, BLOCK as u32);
    }
}
