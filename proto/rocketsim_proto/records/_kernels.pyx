# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Walks, checks and encodes record bytes in compiled code.  `kernels.py` selects this module or the Python code.

`record.py` shows the bytes of a record, and only the Python code says what is wrong with a record.  A function of this
module returns None (or -1) for bytes that it does not accept, or stops before them.  Its caller then runs the Python
code, which raises the error.  If a check is too strict here, only time is lost.  If a check were too lenient, bad
records would pass, so the tests compare this module with the Python code.

The bytes are not trusted.  Each length is compared with the bytes that are left before a byte behind it is read.  Sums
cannot overflow, because they have 64 bits and add numbers of 32 bits, and `scan` checks the offset that it is given.
The GIL is released only for work that takes long, because getting the GIL back takes longer than the work for a few
records.  Functions that need numpy import it themselves, since processes that only look at options import this module,
too.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void* at) noexcept nogil

cdef extern from "_crc32.h" nogil:
    const char* crc32_choose(int way)
    uint32_t crc32_of(const uint8_t* data, size_t size)

cdef enum:
    MAGIC = 0xDAA320A7
    MAGIC_V2 = 0xDAA320AB
    MIN_SIZE = 91
    HEAD_SIZE = 48  # everything before the born host
    FIXED_SIZE = 88  # everything before the body, with IPv4 hosts
    V6_MORE = 12  # an IPv6 host is longer than an IPv4 host by this number of bytes
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NAME_END = 1
    PROPERTY_END = 2
    SECTOR = 512
    MAX_TOPIC_SIZE = 127
    MAX_PROPERTIES_SIZE = 32767
    PREPARED = 4
    ROLLED_BACK = 12
    MANY_QUEUES = 256  # the most queues in one batch; a search through more would take too long
    ENTRY_SIZE = 20  # the size of an entry of a consume queue
    MANY_NAMES = 64  # the most property names in one record; comparing more would take too long
    KNOWN_NAMES = 8  # the property names of a record that are compared with those of the next record
    AHEAD = 8  # heads of records are prefetched this number of records in advance, if the sizes are announced
    PLACES = 8  # columns of a table for the places of records and of their parts
    HEADS = 7  # further columns for fields of records
    LONG = 1 << 16  # the GIL is released for work on more bytes than this
    MOST_BYTES = 0x7FFFFFFF  # the most bytes in one Arrow array, whose offsets have 32 bits

VERSION = 8  # as in `kernels.py`
cdef uint32_t MASK = 0x7FFFFFFF  # RocketMQ stores CRC-32 without its top bit
cdef int64_t MANY = LONG // MIN_SIZE  # the GIL is released for work on the heads of more records than this


def choose_crc(int way=2):
    """Selects how checksums are computed, and returns the name of the way.

    The ways are 0 ("table"), 1 ("pclmul" or "armv8-crc32") and 2 ("vpclmul").  If the processor cannot run the wanted
    way, the fastest one that it can run is selected.
    """
    return crc32_choose(way).decode()


choose_crc()


cdef class Buffer:
    """The memory of a contiguous object, which stays valid as long as the Buffer lives.

    Cython's typed memoryviews do the same, but take ten times as long to compile and several times as long to make.
    """

    cdef Py_buffer view
    cdef bint held
    cdef char* data
    cdef int64_t count  # the number of items

    def __cinit__(self, owner, Py_ssize_t item_size, bint writable=False):
        self.held = False
        PyObject_GetBuffer(owner, &self.view, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.held = True
        if self.view.itemsize != item_size:
            raise TypeError(f"items of {self.view.itemsize} bytes, {item_size} expected")
        self.data = <char*>self.view.buf
        self.count = self.view.len // item_size

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef struct Slice:
    const uint8_t* data
    int64_t size


cdef class Slices:
    """Pieces of bytes, whose memory the Slices object keeps alive.

    The pieces are given as a list of bytes objects, as (offsets, data) of an Arrow binary array, or as (data, starts,
    sizes) of slices of a buffer.  Raises ValueError for a slice that is not inside the buffer.
    """

    cdef Slice* items
    cdef int64_t count
    cdef int64_t total  # the bytes of all pieces together
    cdef object owner
    cdef Buffer places
    cdef Buffer data

    def __cinit__(self, pieces=None):
        self.items = NULL
        if isinstance(pieces, list):
            self.of_list(pieces)
        elif pieces is not None and len(pieces) == 2:
            self.of_arrow(pieces[0], pieces[1])
        elif pieces is not None:
            self.of_buffer(pieces[0], pieces[1], pieces[2])

    cdef make_room(self, int64_t count):
        self.count = count
        self.items = <Slice*>PyMem_Malloc(<size_t>max(count, 1) * sizeof(Slice))
        if self.items == NULL:
            raise MemoryError()

    cdef of_list(self, pieces):
        cdef int64_t row
        self.owner = tuple(pieces)  # the list might change while the GIL is released
        self.make_room(len(self.owner))
        for row in range(self.count):
            piece = self.owner[row]
            if type(piece) is not bytes:
                raise TypeError(f"{type(piece).__name__} among bytes")
            self.items[row].data = <const uint8_t*>PyBytes_AS_STRING(piece)
            self.items[row].size = PyBytes_GET_SIZE(piece)
            self.total += self.items[row].size

    cdef of_arrow(self, offsets, data):
        cdef int64_t row
        self.places, self.data = Buffer(offsets, 4), Buffer(data, 1)
        cdef const int32_t* bounds = <const int32_t*>self.places.data
        if self.places.count < 1 or bounds[0] < 0:
            raise ValueError("offsets without a beginning")
        self.make_room(self.places.count - 1)
        for row in range(self.count):
            if bounds[row + 1] < bounds[row] or bounds[row + 1] > self.data.count:
                raise ValueError(f"slice {row} is not inside the buffer")
            self.items[row].data = <const uint8_t*>self.data.data + bounds[row]
            self.items[row].size = bounds[row + 1] - bounds[row]
        self.total = bounds[self.count] - bounds[0]

    cdef of_buffer(self, data, starts, sizes):
        cdef int64_t row, end
        cdef Buffer size_buffer = Buffer(sizes, 8)
        self.places, self.data = Buffer(starts, 8), Buffer(data, 1)
        cdef const int64_t* begin = <const int64_t*>self.places.data
        cdef const int64_t* size = <const int64_t*>size_buffer.data
        if size_buffer.count != self.places.count:
            raise ValueError(f"{self.places.count} starts, {size_buffer.count} sizes")
        end = self.data.count
        self.make_room(self.places.count)
        for row in range(self.count):
            if begin[row] < 0 or size[row] < 0 or begin[row] > end or size[row] > end - begin[row]:
                raise ValueError(f"slice {row} is not inside the buffer of {end} bytes")
            self.items[row].data = <const uint8_t*>self.data.data + begin[row]
            self.items[row].size = size[row]
            self.total += size[row]

    def __dealloc__(self):
        PyMem_Free(self.items)


cdef struct Place:
    int64_t start
    int64_t size
    int64_t body
    int64_t body_size
    int64_t topic
    int64_t topic_size
    int64_t properties
    int64_t properties_size


cdef inline uint32_t be16(const uint8_t* p) noexcept nogil:
    return <uint32_t>p[0] << 8 | p[1]


cdef inline uint32_t be32(const uint8_t* p) noexcept nogil:
    return <uint32_t>p[0] << 24 | <uint32_t>p[1] << 16 | <uint32_t>p[2] << 8 | p[3]


cdef inline uint64_t be64(const uint8_t* p) noexcept nogil:
    return <uint64_t>be32(p) << 32 | be32(p + 4)


cdef inline void put32(uint8_t* p, uint32_t value) noexcept nogil:
    p[0] = value >> 24
    p[1] = value >> 16 & 0xFF
    p[2] = value >> 8 & 0xFF
    p[3] = value & 0xFF


cdef inline void put64(uint8_t* p, uint64_t value) noexcept nogil:
    put32(p, <uint32_t>(value >> 32))
    put32(p + 4, <uint32_t>value)


cdef inline bint located(const uint8_t* data, int64_t at, int64_t end, Place* place) noexcept nogil:
    """Locates the parts of the record at `at`, as `record.locate` does.  Returns False if lengths are inconsistent."""
    cdef int64_t size, width
    cdef uint32_t magic, sys_flag
    cdef const uint8_t* p
    if at < 0 or at > end or end - at < MIN_SIZE:
        return False
    p = data + at
    size = be32(p)
    magic = be32(p + 4)
    if size < MIN_SIZE or size > end - at or (magic != MAGIC and magic != MAGIC_V2):
        return False
    width = 2 if magic == MAGIC_V2 else 1
    sys_flag = be32(p + 36)
    place.start = at
    place.size = size
    place.body = FIXED_SIZE
    if sys_flag & (BORN_HOST_V6 | STORE_HOST_V6):
        place.body += V6_MORE * ((sys_flag & BORN_HOST_V6 != 0) + (sys_flag & STORE_HOST_V6 != 0))
        if place.body + width + 2 > size:
            return False
    place.body_size = <int32_t>be32(p + place.body - 4)
    if place.body_size < 0 or place.body + place.body_size + width + 2 > size:
        return False
    place.topic = place.body + place.body_size + width
    place.topic_size = be16(p + place.topic - 2) if width == 2 else p[place.topic - 1]
    if place.topic + place.topic_size + 2 > size:
        return False
    place.properties = place.topic + place.topic_size + 2
    place.properties_size = be16(p + place.properties - 2)
    if place.properties + place.properties_size != size:
        return False
    place.body += at
    place.topic += at
    place.properties += at
    return True


cdef inline bint crc_fits(const uint8_t* data, Place* place) noexcept nogil:
    return (crc32_of(data + place.body, <size_t>place.body_size) & MASK) == be32(data + place.start + 8)


cdef inline void keep(int64_t* table, int64_t room, int64_t row, Place* place) noexcept nogil:
    table[row] = place.start
    table[room + row] = place.size
    table[2 * room + row] = place.body
    table[3 * room + row] = place.body_size
    table[4 * room + row] = place.topic
    table[5 * room + row] = place.topic_size
    table[6 * room + row] = place.properties
    table[7 * room + row] = place.properties_size


cdef inline void keep_head(
    int64_t* table, int64_t room, int64_t row, const uint8_t* p, const Place* place
) noexcept nogil:
    """Keeps fields of the record at `p` behind the columns of `keep`."""
    cdef int64_t born_host_size = 8 + V6_MORE * (be32(p + 36) & BORN_HOST_V6 != 0)
    table[PLACES * room + row] = <int32_t>be32(p + 12)  # queue id
    table[(PLACES + 1) * room + row] = <int32_t>be32(p + 16)  # flag
    table[(PLACES + 2) * room + row] = <int64_t>be64(p + 20)  # queue offset
    table[(PLACES + 3) * room + row] = <int32_t>be32(p + 36)  # sys flag
    table[(PLACES + 4) * room + row] = <int64_t>be64(p + 40)  # born timestamp
    table[(PLACES + 5) * room + row] = <int64_t>be64(p + 48 + born_host_size)  # store timestamp
    table[(PLACES + 6) * room + row] = <int32_t>be32(p + place.body - place.start - 16)  # reconsume times


cdef inline bint in_its_place(const uint8_t* data, const Place* place, int64_t log_offset) noexcept nogil:
    """Returns True if a log record has this log offset, belongs to a queue, and has a topic of allowed letters."""
    cdef const uint8_t* p = data + place.start
    cdef uint8_t letter
    cdef int64_t at
    if <int64_t>be64(p + 28) != log_offset or <int32_t>be32(p + 12) < 0 or <int64_t>be64(p + 20) < 0:
        return False
    for at in range(place.topic_size):
        letter = data[place.topic + at]
        if letter >= 0x80 or (letter < 0x30 and letter != 0x25 and letter != 0x2D):  # %, -, and from 0 on
            return False
    return 0 < place.topic_size <= MAX_TOPIC_SIZE


cdef inline bint lacks_sector(const uint8_t* data, const Place* place, int64_t log_offset) noexcept nogil:
    """Returns True if a sector of a log record's topic and properties is all zeros.

    `data` begin at log offset `log_offset`.  Sectors begin at multiples of their size.  The topic must not be empty.
    """
    cdef int64_t at = place.topic, stop, end = place.topic + place.topic_size
    if place.properties_size:
        end = place.properties + place.properties_size
    if data[end - 1] == 0:
        return True
    while at < end:
        stop = min(end, at + SECTOR - (log_offset + at) % SECTOR)
        while at < stop and data[at] == 0:
            at += 1
        if at == stop:
            return True
        at = stop
    return False


cdef int64_t walk_all(
    const uint8_t* data,
    int64_t end,
    const int64_t* sizes,
    bint crc,
    bint heads,
    int64_t log_offset,
    int64_t strict_from,
    int64_t* table,
    int64_t room,
) noexcept nogil:
    """Fills the table with the records from the start on, up to the first one that is wrong, and returns their number.

    `sizes` may be NULL.  Otherwise there are `room` of them.  A `log_offset` of -1 means that the records are not those
    of a log, and `strict_from` then has no meaning.
    """
    cdef Place place
    cdef int64_t at = 0, row = 0
    cdef uint64_t ahead = 0  # where the record `AHEAD` rows further on begins, if the sizes are right
    if sizes != NULL:
        for row in range(min(room, AHEAD)):
            ahead += <uint64_t>sizes[row]
        row = 0
    while row < room and located(data, at, end, &place):
        if sizes != NULL and sizes[row] != place.size:
            break
        if crc and not crc_fits(data, &place):
            break
        if log_offset >= 0:
            if not in_its_place(data, &place, log_offset + at):
                break
            if log_offset + at >= strict_from and lacks_sector(data, &place, log_offset):
                break
        if sizes != NULL and row + AHEAD < room and 64 <= ahead < <uint64_t>end:
            prefetch(data + ahead - 64)
            prefetch(data + ahead)
            prefetch(data + ahead + 64)
            ahead += <uint64_t>sizes[row + AHEAD]
        keep(table, room, row, &place)
        if heads:
            keep_head(table, room, row, data + at, &place)
        at += place.size
        row += 1
    return row


cdef columns_of(
    Buffer source, Buffer sizes, int64_t room, bint crc, bint heads, int64_t log_offset, int64_t strict_from
):
    """Returns the columns that `walk_all` has filled for at most `room` records, and where the last record ends."""
    import numpy as np

    table = np.empty((PLACES + HEADS * heads, room), np.int64)
    cdef Buffer places = Buffer(table, 8, True)
    cdef const uint8_t* first = <const uint8_t*>source.data
    cdef const int64_t* announced = NULL
    cdef int64_t* columns = <int64_t*>places.data
    cdef int64_t found, end = 0
    if sizes is not None:
        announced = <const int64_t*>sizes.data
    if source.count > LONG:
        with nogil:
            found = walk_all(first, source.count, announced, crc, heads, log_offset, strict_from, columns, room)
    else:
        found = walk_all(first, source.count, announced, crc, heads, log_offset, strict_from, columns, room)
    if found:
        end = columns[found - 1] + columns[room + found - 1]
    return (table if found == room else table[:, :found].copy()), end


def walk(data, sizes=None, int64_t count=-1, bint crc=False, bint heads=False):
    """Locates the records that fill `data` exactly, one behind the other, and compares sizes, count and checksums.

    Returns eight int64 columns: start and size of the record, its body, its topic and its properties.  With `heads`
    seven more columns follow: queue id, flag, queue offset, sys flag, born timestamp, store timestamp and reconsume
    times.  Returns None if a length, magic number or checksum is wrong, or if sizes or count differ from the announced
    ones.
    """
    cdef Buffer source = Buffer(data, 1), announced = None
    cdef int64_t room = source.count // MIN_SIZE, end
    if sizes is not None:
        announced = Buffer(sizes, 8)
        if count >= 0 and announced.count != count:
            return None
        count = announced.count
    if count > room:
        return None
    if count >= 0:
        room = count
    table, end = columns_of(source, announced, room, crc, heads, -1, 0)
    return table if end == source.count and (count < 0 or table.shape[1] == count) else None


def scan(data, int64_t log_offset, bint crc, int64_t strict_from):
    """Locates the valid records at the start of `data`, which are the bytes of a log from `log_offset` on.

    The rules are those of `count_valid` in `store/log_scanner.py`, and the topic must be one that `in_its_place`
    accepts.  With `crc`, the bodies are compared with their checksums.  Records from log offset `strict_from` on are
    searched for lost sectors.

    Returns the columns of `walk`, and the position in `data` where the last of these records ends.  What begins there
    may be an incomplete, wrong or merely unusual record, a blank record, or any other bytes.
    """
    cdef Buffer source = Buffer(data, 1)
    cdef int64_t room = source.count // MIN_SIZE
    if log_offset < 0 or log_offset > INT64_MAX - source.count:
        room = 0
    return columns_of(source, None, room, crc, False, log_offset, strict_from)


cdef int64_t place_all(
    const uint8_t* data, int64_t end, const int64_t* starts, const int64_t* sizes, int64_t count, int64_t* table
) noexcept nogil:
    cdef Place place
    cdef int64_t row
    for row in range(count):
        if not located(data, starts[row], end, &place) or place.size != sizes[row]:
            return row
        keep(table, count, row, &place)
    return count


def places(data, starts, sizes):
    """Locates the records at `starts`, in any order.  Returns the columns of `walk`, or None if a record is wrong."""
    import numpy as np

    cdef Buffer source = Buffer(data, 1), start_buffer = Buffer(starts, 8), size_buffer = Buffer(sizes, 8)
    cdef int64_t end = source.count, count = start_buffer.count, found
    if size_buffer.count != count:
        raise ValueError(f"{count} starts, {size_buffer.count} sizes")
    table = np.empty((8, count), np.int64)
    cdef Buffer target = Buffer(table, 8, True)
    cdef const uint8_t* first = <const uint8_t*>source.data
    cdef const int64_t* begins = <const int64_t*>start_buffer.data
    cdef const int64_t* announced = <const int64_t*>size_buffer.data
    cdef int64_t* columns = <int64_t*>target.data
    if count > MANY:
        with nogil:
            found = place_all(first, end, begins, announced, count, columns)
    else:
        found = place_all(first, end, begins, announced, count, columns)
    return table if found == count else None


cdef int64_t join_all(
    const int64_t* offsets,
    const int64_t* sizes,
    int64_t count,
    int64_t begin,
    int64_t end,
    int64_t file_size,
    int64_t* runs,
    int64_t* wrong,
) noexcept nogil:
    """Writes the begin and the end of each run, and returns the number of runs.  `wrong` becomes the number of the
    first record that cannot be in the log, or -1.
    """
    cdef int64_t row, at, size, stop = -1, file_begin = 0, found = 0
    for row in range(count):
        at, size = offsets[row], sizes[row]
        if size < MIN_SIZE or at < begin or size > end - at:
            wrong[0] = row
            return found
        if at < file_begin or at - file_begin >= file_size or not row:
            file_begin = at - at % file_size
        if size > file_size - (at - file_begin):
            wrong[0] = row
            return found
        if at != stop or at == file_begin:
            runs[2 * found] = at
            found += 1
        stop = at + size
        runs[2 * found - 1] = stop
    wrong[0] = -1
    return found


def runs(offsets, sizes, int64_t begin, int64_t end, int64_t file_size):
    """Joins records that follow one another in a file of the log to runs.  The log has the bytes from log offset `begin`
    to `end`.  Reads no record.

    Returns three values: an array with two columns, the log offsets at which each run begins and ends; the log offsets
    at which the runs' files begin, some of them several times; and the number of the first record that cannot be in the
    log, or -1.  If there is such a record, the runs and files are those before it.
    """
    import numpy as np

    cdef Buffer offset_buffer = Buffer(offsets, 8), size_buffer = Buffer(sizes, 8)
    cdef int64_t count = offset_buffer.count, found, row, file_begin = -1, wrong = -1
    if size_buffer.count != count:
        raise ValueError(f"{count} offsets, {size_buffer.count} sizes")
    if begin < 0 or end < begin or file_size <= 0:
        raise ValueError(f"no log reaches from {begin} to {end} in files of {file_size} bytes")
    table = np.empty((count, 2), np.int64)
    cdef Buffer target = Buffer(table, 8, True)
    found = join_all(
        <const int64_t*>offset_buffer.data,
        <const int64_t*>size_buffer.data,
        count,
        begin,
        end,
        file_size,
        <int64_t*>target.data,
        &wrong,
    )
    cdef const int64_t* joined = <const int64_t*>target.data
    files = []
    for row in range(found):
        if file_begin < 0 or joined[2 * row] < file_begin or joined[2 * row] - file_begin >= file_size:
            file_begin = joined[2 * row] - joined[2 * row] % file_size
            files.append(file_begin)
    return table[:found], files, wrong


cdef struct LogFile:
    const uint8_t* data
    int64_t begin
    int64_t size


cdef inline bint has_head(
    const uint8_t* p, int64_t size, int64_t queue_id, int64_t queue_offset, int64_t log_offset
) noexcept nogil:
    cdef uint32_t magic = be32(p + 4)
    return (
        (magic == MAGIC or magic == MAGIC_V2)
        and be32(p) == size
        and <int32_t>be32(p + 12) == queue_id
        and <int64_t>be64(p + 20) == queue_offset
        and <int64_t>be64(p + 28) == log_offset
    )


cdef int64_t find_mismatch(
    const LogFile* files,
    int64_t file_count,
    const int64_t* offsets,
    const int64_t* sizes,
    const int64_t* queue_ids,
    const int64_t* queue_offsets,
    int64_t count,
) noexcept nogil:
    cdef int64_t row, at, number = 0, tries
    for row in range(count):
        tries = 0
        while offsets[row] < files[number].begin or offsets[row] - files[number].begin >= files[number].size:
            number = (number + 1) % file_count
            tries += 1
            if tries == file_count:
                return row
        at = offsets[row] - files[number].begin
        if files[number].size - at < HEAD_SIZE:
            return row
        if not has_head(files[number].data + at, sizes[row], queue_ids[row], queue_offsets[row], offsets[row]):
            return row
    return -1


def first_mismatch(list files not None, offsets, sizes, queue_ids, queue_offsets):
    """Compares the heads of records in a log with the sizes, queue ids and queue offsets that they should have.

    `files` has the log offset and the bytes of each file.  Returns the number of the first record that is not at its
    log offset with its size, queue id and queue offset; -1 if all are.
    """
    cdef Buffer offset_buffer = Buffer(offsets, 8), size_buffer = Buffer(sizes, 8), bytes_of_file
    cdef Buffer id_buffer = Buffer(queue_ids, 8), queue_offset_buffer = Buffer(queue_offsets, 8)
    cdef int64_t count = offset_buffer.count, file_count = len(files), number, found
    if not (size_buffer.count == id_buffer.count == queue_offset_buffer.count == count):
        raise ValueError(f"{count} offsets, but other numbers of sizes, queue ids or queue offsets")
    if not count:
        return -1
    if not file_count:
        return 0
    held = [(int(begin), Buffer(data, 1)) for begin, data in files]
    cdef LogFile* places = <LogFile*>PyMem_Malloc(<size_t>file_count * sizeof(LogFile))
    if places == NULL:
        raise MemoryError()
    try:
        for number in range(file_count):
            bytes_of_file = held[number][1]
            if held[number][0] < 0:
                raise ValueError(f"a log file that begins at {held[number][0]}")
            places[number].begin = held[number][0]
            places[number].data = <const uint8_t*>bytes_of_file.data
            places[number].size = bytes_of_file.count
        if count > MANY:
            with nogil:
                found = find_mismatch(
                    places,
                    file_count,
                    <const int64_t*>offset_buffer.data,
                    <const int64_t*>size_buffer.data,
                    <const int64_t*>id_buffer.data,
                    <const int64_t*>queue_offset_buffer.data,
                    count,
                )
        else:
            found = find_mismatch(
                places,
                file_count,
                <const int64_t*>offset_buffer.data,
                <const int64_t*>size_buffer.data,
                <const int64_t*>id_buffer.data,
                <const int64_t*>queue_offset_buffer.data,
                count,
            )
    finally:
        PyMem_Free(places)
    return found


def locate(data, int64_t at):
    """Returns the fields of `record.Parts` for the record at `at`, or None if the record is not valid.

    Does not check the checksum of the body.
    """
    cdef Buffer source = Buffer(data, 1)
    cdef const uint8_t* p = <const uint8_t*>source.data
    cdef Place place
    cdef int64_t born_end, store_end
    cdef uint32_t sys_flag
    if not located(p, at, source.count, &place):
        return None
    p += at
    sys_flag = be32(p + 36)
    born_end = at + HEAD_SIZE + (20 if sys_flag & BORN_HOST_V6 else 8)
    store_end = born_end + 8 + (20 if sys_flag & STORE_HOST_V6 else 8)
    return (
        at,
        place.size,
        be32(p + 8),
        <int32_t>be32(p + 12),
        <int32_t>be32(p + 16),
        <int64_t>be64(p + 20),
        <int64_t>be64(p + 28),
        <int32_t>sys_flag,
        <int64_t>be64(p + 40),
        born_end,
        store_end,
        place.body,
        place.body + place.body_size,
        place.topic,
        place.topic + place.topic_size,
        place.properties,
    )


def crc32(data):
    """Returns the checksum of all bytes of `data`, as `zlib.crc32` does."""
    cdef Buffer source = Buffer(data, 1)
    cdef uint32_t found
    if source.count > LONG:
        with nogil:
            found = crc32_of(<const uint8_t*>source.data, <size_t>source.count)
        return found
    return crc32_of(<const uint8_t*>source.data, <size_t>source.count)


cdef void sum_all(const Slice* slices, int64_t count, uint32_t* sums) noexcept nogil:
    cdef int64_t row
    for row in range(count):
        sums[row] = crc32_of(slices[row].data, <size_t>slices[row].size) & MASK


def crcs(data, starts, sizes):
    """Returns the checksum of each slice of `data`, as `record.body_crc` does.

    Raises ValueError for a slice that is not inside `data`.
    """
    import numpy as np

    cdef Slices slices = Slices((data, starts, sizes))
    sums = np.empty(slices.count, np.uint32)
    cdef Buffer target = Buffer(sums, 4, True)
    cdef uint32_t* found = <uint32_t*>target.data
    if slices.total > LONG:
        with nogil:
            sum_all(slices.items, slices.count, found)
    else:
        sum_all(slices.items, slices.count, found)
    return sums


# --- what a broker asks of a client's frame ---------------------------------------------------------------------------


cdef struct Queues:
    int64_t count
    int64_t last  # the number of the queue that was found last
    int32_t ids[MANY_QUEUES]
    int64_t next[MANY_QUEUES]  # the offset of each queue's next message


cdef inline int64_t number_of(Queues* queues, int32_t queue_id) noexcept nogil:
    """Returns the number of this queue among the queues seen so far, or -1 if there are too many queues."""
    cdef int64_t number = queues.last
    if number < queues.count and queues.ids[number] == queue_id:
        return number
    number += 1  # messages often go to each queue in turn
    if number >= queues.count or queues.ids[number] != queue_id:
        number = 0
        while number < queues.count and queues.ids[number] != queue_id:
            number += 1
        if number == MANY_QUEUES:
            return -1
        if number == queues.count:
            queues.ids[number] = queue_id
            queues.count += 1
    queues.last = number
    return number


cdef struct KnownName:
    const uint8_t* data
    int64_t size  # 0 if there is no such property
    uint64_t found  # what the name adds to `Rules.found`


cdef struct Rules:
    const uint8_t* topic
    int64_t topic_size
    int64_t max_body_size
    int64_t max_record_size
    uint32_t other_flags  # the bits of the system flag that a client may not set
    uint32_t store_host  # STORE_HOST_V6, or 0
    const uint8_t** names
    const int64_t* name_sizes
    int64_t name_count
    uint64_t found  # bit n is set if a record has a property with the n-th name
    KnownName known[KNOWN_NAMES]  # the names of the record before, in their order


cdef inline bint has_lost_sector(const uint8_t* p, int64_t size) noexcept nogil:
    """Returns True if the bytes end with a zero byte or have a sector of zeros, at any place."""
    cdef int64_t at, begin, end
    if size and p[size - 1] == 0:
        return True
    at = SECTOR - 1  # SECTOR zeros in a row cover one of the places SECTOR - 1, 2 * SECTOR - 1, …
    while at < size:
        if p[at] == 0:
            begin = at
            while begin > 0 and p[begin - 1] == 0:
                begin -= 1
            end = at + 1
            while end < size and p[end] == 0:
                end += 1
            if end - begin >= SECTOR:
                return True
        at += SECTOR
    return False


cdef inline bint next_property(const uint8_t** at, const uint8_t* end, Slice* name, Slice* value) noexcept nogil:
    """Finds the next property from `at` on and moves `at` behind it.  Returns False if there is no further property.

    A piece that lacks the separator, the name or the value is not a property.
    """
    cdef const uint8_t* p
    cdef const uint8_t* stop
    cdef const uint8_t* separator
    while at[0] < end:
        p = at[0]
        stop = <const uint8_t*>memchr(p, PROPERTY_END, <size_t>(end - p))
        if stop == NULL:
            stop = end
        at[0] = stop + 1
        separator = <const uint8_t*>memchr(p, NAME_END, <size_t>(stop - p))
        if separator != NULL and separator > p and separator + 1 < stop:
            name.data, name.size = p, separator - p
            value.data, value.size = separator + 1, stop - separator - 1
            return True
    return False


cdef inline uint64_t number_bit(const Slice* name, const Rules* rules) noexcept nogil:
    """Returns the bits of those names in `rules` that are equal to `name`."""
    cdef uint64_t found = 0
    cdef int64_t number
    for number in range(rules.name_count):
        if rules.name_sizes[number] == name.size and memcmp(name.data, rules.names[number], <size_t>name.size) == 0:
            found |= (<uint64_t>1) << number
    return found


cdef inline void note_names(const uint8_t* p, int64_t size, Rules* rules) noexcept nogil:
    """Notes in `rules.found` which of the names in `rules` occur among the properties.

    The records of a frame usually have the same names in the same order.  Therefore each name is first compared with
    that of the record before, so that only the end of its value has to be searched.
    """
    cdef const uint8_t* end = p + size
    cdef const uint8_t* value_at
    cdef const uint8_t* stop
    cdef KnownName* known
    cdef Slice name, value
    cdef int64_t number = 0
    while p < end:
        known = &rules.known[number % KNOWN_NAMES]
        number += 1
        # `known` has neither a NAME_END nor a PROPERTY_END, so `next_property` would find the same name.
        if known.size and end - p > known.size + 1 and p[known.size] == NAME_END:
            if memcmp(p, known.data, <size_t>known.size) == 0:
                value_at = p + known.size + 1
                stop = <const uint8_t*>memchr(value_at, PROPERTY_END, <size_t>(end - value_at))
                if stop != value_at:  # a piece without a value is not a property
                    rules.found |= known.found
                if stop == NULL:
                    return
                p = stop + 1
                continue
        if not next_property(&p, end, &name, &value):
            return
        known.data, known.size, known.found = name.data, name.size, number_bit(&name, rules)
        rules.found |= known.found


cdef int64_t check_all(
    const uint8_t* data, int64_t end, int64_t count, Rules* rules, int64_t* table, Queues* queues
) noexcept nogil:
    cdef Place place
    cdef int64_t at = 0, row = 0
    cdef uint32_t sys_flag
    while at < end:
        if row >= count or not located(data, at, end, &place) or not crc_fits(data, &place):
            return -1
        if place.topic_size != rules.topic_size or place.size > rules.max_record_size:
            return -1
        if memcmp(data + place.topic, rules.topic, <size_t>place.topic_size) != 0:
            return -1
        if place.body_size > rules.max_body_size or place.properties_size > MAX_PROPERTIES_SIZE:
            return -1
        sys_flag = be32(data + at + 36)
        if sys_flag & rules.other_flags or sys_flag & STORE_HOST_V6 != rules.store_host:
            return -1
        if has_lost_sector(data + place.properties, place.properties_size):
            return -1
        note_names(data + place.properties, place.properties_size, rules)
        if number_of(queues, <int32_t>be32(data + at + 12)) < 0:
            return -1
        keep(table, count, row, &place)
        at += place.size
        row += 1
    return row


def check(
    data,
    int64_t count,
    bytes topic not None,
    tuple names not None,
    *,
    int64_t max_body_size,
    int64_t max_record_size,
    uint32_t client_flags,
    bint store_host_v6,
):
    """Checks a client's frame in one pass, as `walk` does, and by all rules for records in `broker/frame.py`.

    Returns None if a rule is broken.  Otherwise returns (the columns of `walk`, the different queue ids, bits), where
    bit n is set if a record has a property with the n-th of `names`.
    """
    import numpy as np

    cdef Buffer source = Buffer(data, 1)
    cdef int64_t end = source.count, number, found
    if count <= 0 or count > end // MIN_SIZE or len(names) > 64:
        return None
    cdef const uint8_t* pointers[64]
    cdef int64_t lengths[64]
    for number in range(len(names)):
        if not isinstance(names[number], bytes):
            raise TypeError("names are bytes")
        pointers[number] = <const uint8_t*>PyBytes_AS_STRING(names[number])
        lengths[number] = PyBytes_GET_SIZE(names[number])
    cdef Rules rules
    rules.topic = <const uint8_t*>PyBytes_AS_STRING(topic)
    rules.topic_size = PyBytes_GET_SIZE(topic)
    rules.max_body_size = max_body_size
    rules.max_record_size = max_record_size
    rules.other_flags = ~client_flags
    rules.store_host = STORE_HOST_V6 if store_host_v6 else 0
    rules.names = pointers
    rules.name_sizes = lengths
    rules.name_count = len(names)
    rules.found = 0
    for number in range(KNOWN_NAMES):
        rules.known[number].size = 0
    table = np.empty((8, count), np.int64)
    cdef Queues queues
    queues.count = queues.last = 0
    cdef Buffer places = Buffer(table, 8, True)
    cdef const uint8_t* first = <const uint8_t*>source.data
    cdef int64_t* columns = <int64_t*>places.data
    if end > LONG:
        with nogil:
            found = check_all(first, end, count, &rules, columns, &queues)
    else:
        found = check_all(first, end, count, &rules, columns, &queues)
    if found != count:
        return None
    return table, [queues.ids[number] for number in range(queues.count)], rules.found


# --- columns ----------------------------------------------------------------------------------------------------------


cdef bint field_all(
    const uint8_t* data, int64_t end, const int64_t* starts, int64_t count, int64_t at, int32_t* four, int64_t* eight
) noexcept nogil:
    """Fills `eight`, or `four` if `eight` is NULL.  Returns False for a record that `field` leaves to Python."""
    cdef int64_t row
    cdef const uint8_t* p
    for row in range(count):
        if starts[row] < 0 or starts[row] > end - FIXED_SIZE:
            return False
        p = data + starts[row]
        if be32(p + 36) & (BORN_HOST_V6 | STORE_HOST_V6):
            return False
        if eight != NULL:
            eight[row] = <int64_t>be64(p + at)
        else:
            four[row] = <int32_t>be32(p + at)
    return True


def field(data, starts, int64_t at, int64_t size):
    """Returns one field of the records that begin at `starts`: the integer of 4 or 8 bytes at byte `at` of each record.

    Returns None if the fields before a body are not inside `data`, and if a record has an IPv6 host, because its fields
    lie at other places.
    """
    import numpy as np

    cdef Buffer source = Buffer(data, 1), begins = Buffer(starts, 8), target
    cdef const uint8_t* first = <const uint8_t*>source.data
    cdef const int64_t* begin = <const int64_t*>begins.data
    cdef int64_t count = begins.count, end = source.count
    cdef int32_t* four = NULL
    cdef int64_t* eight = NULL
    cdef bint fits
    if size != 4 and size != 8 or at < 0 or at > FIXED_SIZE - size:
        raise ValueError(f"no field of {size} bytes is at byte {at}")
    column = np.empty(count, np.int64 if size == 8 else np.int32)
    target = Buffer(column, size, True)
    if size == 8:
        eight = <int64_t*>target.data
    else:
        four = <int32_t*>target.data
    if count > MANY:
        with nogil:
            fits = field_all(first, end, begin, count, at, four, eight)
    else:
        fits = field_all(first, end, begin, count, at, four, eight)
    return column if fits else None


cdef void copy_all(const Slice* slices, int64_t count, uint8_t* p) noexcept nogil:
    """Copies the slices back to back."""
    cdef int64_t row
    for row in range(count):
        memcpy(p, slices[row].data, <size_t>slices[row].size)
        p += slices[row].size


cdef bint is_ascii(const uint8_t* p, int64_t size) noexcept nogil:
    cdef const uint8_t* end = p + size
    cdef uint64_t eight, together = 0
    while end - p >= 8:
        memcpy(&eight, p, 8)
        together |= eight
        p += 8
    while p < end:
        together |= p[0]
        p += 1
    return together & <uint64_t>0x8080808080808080 == 0


cdef column_of(Slices pieces, int64_t count, bint text=True):
    """Copies the first `count` pieces into an Arrow array's memory.

    Returns the array's offsets, bytes and validity bits (None if no piece is empty), and True if the pieces are text
    and all bytes are ASCII.
    """
    import numpy as np

    cdef int64_t row, total = 0, empty = 0
    offsets = np.empty(count + 1, np.int32)
    cdef Buffer offset_buffer = Buffer(offsets, 4, True), target
    cdef int32_t* bounds = <int32_t*>offset_buffer.data
    bounds[0] = 0
    for row in range(count):
        total += pieces.items[row].size
        if total > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES} bytes for one column")
        bounds[row + 1] = <int32_t>total
        empty += pieces.items[row].size == 0
    data = np.empty(total, np.uint8)
    target = Buffer(data, 1, True)
    cdef uint8_t* p = <uint8_t*>target.data
    cdef bint plain
    if total > LONG:
        with nogil:
            copy_all(pieces.items, count, p)
            plain = text and is_ascii(p, total)
    else:
        copy_all(pieces.items, count, p)
        plain = text and is_ascii(p, total)
    if not empty:
        return offsets, data, None, plain
    bits = np.zeros((count + 7) // 8, np.uint8)
    target = Buffer(bits, 1, True)
    p = <uint8_t*>target.data
    for row in range(count):
        p[row >> 3] |= (pieces.items[row].size != 0) << (row & 7)
    return offsets, data, bits, plain


def gather(data, starts, sizes):
    """Copies slices of `data`, and returns the offsets and bytes of an Arrow array.

    Raises ValueError for a slice that is not inside `data`.
    """
    cdef Slices slices = Slices((data, starts, sizes))
    return column_of(slices, slices.count, text=False)[:2]


cdef inline Slice value_of(const Slice* properties, const char* name, int64_t name_size) noexcept nogil:
    """Returns the value of a property, or an empty slice if there is none.  The last value counts if there are two."""
    cdef const uint8_t* p = properties.data
    cdef const uint8_t* end = p + properties.size
    cdef const uint8_t* stop
    cdef Slice found
    found.data, found.size = p, 0
    while p < end:
        stop = <const uint8_t*>memchr(p, PROPERTY_END, <size_t>(end - p))
        if stop == NULL:
            stop = end
        if stop - p > name_size + 1 and p[name_size] == NAME_END and memcmp(p, name, <size_t>name_size) == 0:
            found.data, found.size = p + name_size + 1, stop - p - name_size - 1
        p = stop + 1
    return found


cdef void find_all(Slice* slices, int64_t count, const char* name, int64_t name_size) noexcept nogil:
    """Replaces each record's properties by the value of the property `name`."""
    cdef int64_t row
    for row in range(count):
        slices[row] = value_of(&slices[row], name, name_size)


cdef bytes name_to_find(bytes name):
    """Returns the name.  If no property with this name can be written, returns a name that no property can have."""
    return b"\x02" if not name or b"\x01" in name else name


def property_values(data, starts, sizes, bytes name not None):
    """Returns one property of all records as the parts of an Arrow array.

    The parts are offsets, bytes, validity bits (None without nulls), and True if all bytes are ASCII.
    """
    cdef Slices slices = Slices((data, starts, sizes))
    cdef bytes present = name_to_find(name)
    cdef int64_t name_size = PyBytes_GET_SIZE(present)
    cdef const char* wanted = PyBytes_AS_STRING(present)
    if slices.total > LONG:
        with nogil:
            find_all(slices.items, slices.count, wanted, name_size)
    else:
        find_all(slices.items, slices.count, wanted, name_size)
    return column_of(slices, slices.count)


cdef int64_t split_all(
    const Slice* slices, int64_t count, int32_t* bounds, Slice* names, Slice* values
) noexcept nogil:
    """Splits the properties of each record.  Returns their number, or -1 if a record has too many names."""
    cdef const uint8_t* p
    cdef Slice name, value
    cdef int64_t row, first, same, found = 0
    for row in range(count):
        bounds[row] = <int32_t>found
        first, p = found, slices[row].data
        while next_property(&p, slices[row].data + slices[row].size, &name, &value):
            same = first
            while same < found and (
                names[same].size != name.size or memcmp(names[same].data, name.data, <size_t>name.size) != 0
            ):
                same += 1
            if same - first == MANY_NAMES:
                return -1
            names[same], values[same] = name, value
            found += same == found
    bounds[count] = <int32_t>found
    return found


def property_map(data, starts, sizes):
    """Splits the properties of each record, with each name once.

    Returns where each record's names begin and end among all names, and names and values in the form of
    `property_values`.  Returns None if a record has very many names, or if a name is not ASCII, since different names
    that are not UTF-8 could be read as the same name.
    """
    import numpy as np

    cdef Slices slices = Slices((data, starts, sizes)), names = Slices(), values = Slices()
    cdef int64_t room = slices.total // 4 + slices.count, found  # a property has three bytes, and a separator behind
    if room > MOST_BYTES:
        return None
    names.make_room(room)
    values.make_room(room)
    bounds = np.empty(slices.count + 1, np.int32)
    cdef Buffer target = Buffer(bounds, 4, True)
    cdef int32_t* places = <int32_t*>target.data
    if slices.total > LONG:
        with nogil:
            found = split_all(slices.items, slices.count, places, names.items, values.items)
    else:
        found = split_all(slices.items, slices.count, places, names.items, values.items)
    if found < 0 or not (name_column := column_of(names, found))[3]:
        return None
    return bounds, name_column, column_of(values, found)


# --- hashes -----------------------------------------------------------------------------------------------------------


cdef inline bint go_on(uint32_t* hash, const uint8_t* p, int64_t size) noexcept nogil:
    """Continues the String.hashCode of Java in `hash`.  Returns False if a character is not ASCII."""
    cdef const uint8_t* end = p + size
    cdef uint32_t together = 0, code = hash[0], four
    while end - p >= 4:  # four characters in one step, since each multiplication has to wait for the one before
        together |= p[0] | p[1] | p[2] | p[3]
        four = <uint32_t>p[0] * 29791 + <uint32_t>p[1] * 961 + <uint32_t>p[2] * 31 + p[3]
        code = code * 923521 + four
        p += 4
    while p < end:
        together |= p[0]
        code = code * 31 + p[0]
        p += 1
    hash[0] = code
    return together < 0x80


cdef bint hash_all(
    const Slice* properties, int64_t count, const char* name, int64_t name_size, int64_t* hashes
) noexcept nogil:
    """Computes the hash of the property `name` of each record.  Returns False if a value is not ASCII."""
    cdef Slice value
    cdef int64_t row
    cdef uint32_t hash
    for row in range(count):
        value = value_of(properties + row, name, name_size)
        hash = 0
        if not go_on(&hash, value.data, value.size):
            return False
        hashes[row] = <int32_t>hash
    return True


def property_hashes(data, starts, sizes, bytes name not None):
    """Returns Java's hashCode of one property of each record, and 0 for records without the property.

    Returns None if a value is not ASCII.
    """
    import numpy as np

    cdef Slices slices = Slices((data, starts, sizes))
    cdef bytes present = name_to_find(name)
    cdef int64_t name_size = PyBytes_GET_SIZE(present)
    cdef const char* wanted = PyBytes_AS_STRING(present)
    hashes = np.empty(slices.count, np.int64)
    cdef Buffer target = Buffer(hashes, 8, True)
    cdef int64_t* found = <int64_t*>target.data
    cdef bint plain
    if slices.total > LONG:
        with nogil:
            plain = hash_all(slices.items, slices.count, wanted, name_size, found)
    else:
        plain = hash_all(slices.items, slices.count, wanted, name_size, found)
    return hashes if plain else None


cdef struct Entries:
    int32_t* hashes
    int64_t* rows
    int64_t room
    int64_t count  # the number of entries; entries beyond `room` are counted but not written


cdef inline bint add(Entries* entries, int64_t row, uint32_t hash, const uint8_t* p, int64_t size) noexcept nogil:
    if not go_on(&hash, p, size):
        return False
    if entries.count < entries.room:
        hash = 0 - hash if hash > 0x7FFFFFFF else hash
        entries.hashes[entries.count] = <int32_t>hash if hash <= 0x7FFFFFFF else 0
        entries.rows[entries.count] = row
    entries.count += 1
    return True


cdef bint index_all(
    const Slice* properties,
    int64_t count,
    const int64_t* codes,
    const uint32_t* keys_before,
    const uint32_t* tags_before,
    Entries* entries,
) noexcept nogil:
    cdef int64_t row
    cdef uint32_t before
    cdef Slice name, value, unique, keys, tags
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef const uint8_t* stop
    for row in range(count):
        unique.size = keys.size = tags.size = 0
        p, end = properties[row].data, properties[row].data + properties[row].size
        while next_property(&p, end, &name, &value):  # the last value counts
            if name.size == 8 and memcmp(name.data, b"UNIQ_KEY", 8) == 0:
                unique = value
            elif name.size == 4 and memcmp(name.data, b"KEYS", 4) == 0:
                keys = value
            elif name.size == 4 and memcmp(name.data, b"TAGS", 4) == 0:
                tags = value
        before = keys_before[codes[row]]
        if unique.size and not add(entries, row, before, unique.data, unique.size):
            return False
        p, end = keys.data, keys.data + keys.size
        while keys.size and p < end:
            stop = <const uint8_t*>memchr(p, 32, <size_t>(end - p))
            if stop == NULL:
                stop = end
            if stop > p and not add(entries, row, before, p, stop - p):
                return False
            p = stop + 1
        if tags.size and not add(entries, row, tags_before[codes[row]], tags.data, tags.size):
            return False
    return True


def index_hashes(data, starts, sizes, codes, keys_before, tags_before):
    """Returns the hashes of the records' index entries, and the row of each entry's record.

    `index_keys.py` describes the entries.  `codes` has the number of each record's topic.  `keys_before` and
    `tags_before` have, for each topic, the hash of the text that stands before a key and before tags.  Returns None if
    a key or tag is not ASCII.
    """
    import numpy as np

    cdef Slices properties = Slices((data, starts, sizes))
    cdef Buffer code_buffer = Buffer(codes, 8), key_buffer = Buffer(keys_before, 4), tag_buffer = Buffer(tags_before, 4)
    cdef const int64_t* code = <const int64_t*>code_buffer.data
    cdef const uint32_t* keys = <const uint32_t*>key_buffer.data
    cdef const uint32_t* tags = <const uint32_t*>tag_buffer.data
    cdef int64_t row, count = properties.count
    cdef Buffer hash_buffer, row_buffer
    cdef Entries entries
    cdef bint plain
    if code_buffer.count != count or key_buffer.count != tag_buffer.count:
        raise ValueError(f"{count} records, {code_buffer.count} codes")
    for row in range(count):
        if code[row] < 0 or code[row] >= key_buffer.count:
            raise ValueError(f"record {row} is of topic {code[row]}; there are {key_buffer.count}")
    entries.room, entries.count = 3 * count, 0
    while True:
        hashes, rows = np.empty(entries.room, np.int32), np.empty(entries.room, np.int64)
        hash_buffer, row_buffer = Buffer(hashes, 4, True), Buffer(rows, 8, True)
        entries.hashes, entries.rows, entries.count = <int32_t*>hash_buffer.data, <int64_t*>row_buffer.data, 0
        if properties.total > LONG:
            with nogil:
                plain = index_all(properties.items, count, code, keys, tags, &entries)
        else:
            plain = index_all(properties.items, count, code, keys, tags, &entries)
        if not plain:
            return None
        if entries.count <= entries.room:
            return hashes[: entries.count], rows[: entries.count]
        entries.room = entries.count  # records have several keys, so there are more than three entries a record


# --- what a broker adds -----------------------------------------------------------------------------------------------


cdef inline bint has_room(const uint8_t* data, int64_t at, int64_t end, uint32_t store_host) noexcept nogil:
    """Returns True if the fields before the body are inside the buffer, and the store host has the length to write."""
    cdef uint32_t sys_flag
    if at < 0 or at > end or end - at < FIXED_SIZE:
        return False
    sys_flag = be32(data + at + 36)
    if sys_flag & STORE_HOST_V6 != store_host:
        return False
    return end - at >= FIXED_SIZE + V6_MORE * ((sys_flag & BORN_HOST_V6 != 0) + (store_host != 0))


cdef bint stamp_all(
    uint8_t* data,
    int64_t end,
    const int64_t* starts,
    int64_t count,
    int64_t log_offset,
    Queues* queues,
    const uint8_t* stored,
    int64_t stored_size,
    bint write,
) noexcept nogil:
    """Stamps the records if `write` is set.  Otherwise only finds their queues, and checks that the stamp fits.

    Returns False if the stamp does not fit into a record.
    """
    cdef uint32_t store_host = STORE_HOST_V6 if stored_size == 28 else 0, kind
    cdef int64_t row, number, queue_offset, free = 0
    cdef uint8_t* p
    for row in range(count):
        if starts[row] < free or not has_room(data, starts[row], end, store_host):
            return False
        free = starts[row] + MIN_SIZE  # so that a stamp cannot reach into the next record
        p = data + starts[row]
        kind = be32(p + 36) & ROLLED_BACK
        queue_offset = 0
        if kind != PREPARED and kind != ROLLED_BACK:
            number = number_of(queues, <int32_t>be32(p + 12))
            if number < 0:
                return False
            if write:
                queue_offset = queues.next[number]
                queues.next[number] += 1
        if write:
            put64(p + 20, <uint64_t>queue_offset)
            put64(p + 28, <uint64_t>(log_offset + starts[row] - starts[0]))
            memcpy(p + HEAD_SIZE + (20 if be32(p + 36) & BORN_HOST_V6 else 8), stored, <size_t>stored_size)
    return True


def stamp(
    data, starts, int64_t log_offset, dict next_offsets not None, int64_t store_timestamp, bytes store_host not None
):
    """Writes the broker's fields into records that lie back to back, as `stamp` of `store/batch.py` describes.

    Returns False, and changes nothing, if a record's store host has another length, or if there are very many queues.
    """
    cdef Buffer target = Buffer(data, 1, True), start_buffer = Buffer(starts, 8)
    cdef const int64_t* begins = <const int64_t*>start_buffer.data
    cdef uint8_t* first = <uint8_t*>target.data
    cdef int64_t count = start_buffer.count, host_size = PyBytes_GET_SIZE(store_host), number, end = target.count
    cdef uint8_t stored[28]
    cdef Queues queues
    cdef bint fits
    queues.count = queues.last = 0
    if host_size != 8 and host_size != 20:
        return False
    put64(stored, <uint64_t>store_timestamp)
    memcpy(stored + 8, PyBytes_AS_STRING(store_host), <size_t>host_size)
    if count > MANY:
        with nogil:
            fits = stamp_all(first, end, begins, count, log_offset, &queues, stored, 8 + host_size, False)
    else:
        fits = stamp_all(first, end, begins, count, log_offset, &queues, stored, 8 + host_size, False)
    if not fits:
        return False
    for number in range(queues.count):
        queues.next[number] = next_offsets[queues.ids[number]]
    if count > MANY:
        with nogil:
            stamp_all(first, end, begins, count, log_offset, &queues, stored, 8 + host_size, True)
    else:
        stamp_all(first, end, begins, count, log_offset, &queues, stored, 8 + host_size, True)
    for number in range(queues.count):
        next_offsets[queues.ids[number]] = queues.next[number]
    return True


cdef struct Extents:
    int64_t count
    int32_t queue_ids[MANY_QUEUES]
    int64_t firsts[MANY_QUEUES]  # the queue offset of each extent's first entry
    int64_t ends[MANY_QUEUES]  # at first the number of the extent's entries, then where the next entry is written


cdef int64_t extents_of(
    const uint8_t* data,
    int64_t end,
    const int64_t* starts,
    int64_t count,
    Extents* extents,
    int32_t* rows,
    Place* topic,
) noexcept nogil:
    """Finds the extent of each record, or -1 for a record without an entry.

    Returns the number of entries, or -1 if a record is wrong or there are too many extents.
    """
    cdef Place place
    cdef Queues queues
    cdef int64_t current[MANY_QUEUES]  # the newest extent of each queue
    cdef int64_t row, number, known, offset, found = 0
    cdef uint32_t kind
    queues.count = queues.last = extents.count = topic.topic = topic.topic_size = 0
    for row in range(count):
        if not located(data, starts[row], end, &place):
            return -1
        if not row:
            topic[0] = place
        if place.topic_size != topic.topic_size:
            return -1
        if memcmp(data + place.topic, data + topic.topic, <size_t>topic.topic_size) != 0:
            return -1
        rows[row] = -1
        kind = be32(data + starts[row] + 36) & ROLLED_BACK
        if kind == PREPARED or kind == ROLLED_BACK:
            continue
        known, offset = queues.count, <int64_t>be64(data + starts[row] + 20)
        number = number_of(&queues, <int32_t>be32(data + starts[row] + 12))
        if number < 0:
            return -1
        if number == known or queues.next[number] != offset:
            if extents.count == MANY_QUEUES:
                return -1
            current[number] = extents.count
            extents.queue_ids[extents.count] = queues.ids[number]
            extents.firsts[extents.count], extents.ends[extents.count] = offset, 0
            extents.count += 1
        queues.next[number] = <int64_t>(<uint64_t>offset + 1)
        extents.ends[current[number]] += 1
        rows[row] = <int32_t>current[number]
        found += 1
    return found


cdef bint enter_all(
    const uint8_t* data,
    int64_t end,
    const int64_t* starts,
    int64_t count,
    Extents* extents,
    const int32_t* rows,
    uint8_t* p,
) noexcept nogil:
    """Writes each record's entry at the end of its extent.  Returns False if tags are not ASCII."""
    cdef Place place
    cdef Slice properties, tags
    cdef uint32_t code
    cdef uint8_t* entry
    cdef int64_t row
    for row in range(count):
        if rows[row] < 0 or not located(data, starts[row], end, &place):
            continue
        properties.data, properties.size = data + place.properties, place.properties_size
        tags, code = value_of(&properties, b"TAGS", 4), 0
        if not go_on(&code, tags.data, tags.size):
            return False
        entry = p + ENTRY_SIZE * extents.ends[rows[row]]
        extents.ends[rows[row]] += 1
        memcpy(entry, data + starts[row] + 28, 8)  # the log offset
        put32(entry + 8, <uint32_t>place.size)
        put64(entry + 12, <uint64_t><int64_t><int32_t>code)
    return True


def queue_entries(data, starts):
    """Makes the consume-queue entries of stamped records of one topic.

    Entries of one queue with consecutive queue offsets form an extent.  Returns the topic, the entries, and (queue id,
    queue offset, first entry, last entry + 1) for each extent.  Returns None if a record is not valid or of another
    topic, if tags are not ASCII, or if there are very many extents.
    """
    import numpy as np

    cdef Buffer source = Buffer(data, 1), start_buffer = Buffer(starts, 8), row_buffer, target
    cdef const uint8_t* first = <const uint8_t*>source.data
    cdef const int64_t* begins = <const int64_t*>start_buffer.data
    cdef int64_t count = start_buffer.count, end = source.count, number, size, found, at = 0
    cdef Extents extents
    cdef Place topic
    cdef bint done
    if not count:
        return None
    rows = np.empty(count, np.int32)
    row_buffer = Buffer(rows, 4, True)
    cdef int32_t* extent_of = <int32_t*>row_buffer.data
    if count > MANY:
        with nogil:
            found = extents_of(first, end, begins, count, &extents, extent_of, &topic)
    else:
        found = extents_of(first, end, begins, count, &extents, extent_of, &topic)
    if found < 0:
        return None
    entries = np.empty(found * ENTRY_SIZE, np.uint8)
    target = Buffer(entries, 1, True)
    cdef uint8_t* p = <uint8_t*>target.data
    bounds = []
    for number in range(extents.count):
        size = extents.ends[number]
        bounds.append((extents.queue_ids[number], extents.firsts[number], at, at + size))
        extents.ends[number] = at
        at += size
    if count > MANY:
        with nogil:
            done = enter_all(first, end, begins, count, &extents, extent_of, p)
    else:
        done = enter_all(first, end, begins, count, &extents, extent_of, p)
    return ((<const char*>first)[topic.topic : topic.topic + topic.topic_size], entries, bounds) if done else None


# --- encoding ---------------------------------------------------------------------------------------------------------


cdef struct Fields:
    const int32_t* queue_ids  # like the next three fields, one value for each record, or one for all records
    const int32_t* flags
    const int32_t* sys_flags
    const int64_t* born_timestamps
    int64_t queue_step  # 1, or 0 if there is one value for all records
    int64_t flag_step
    int64_t sys_flag_step
    int64_t born_step
    uint32_t host_flags
    uint8_t* head  # the bytes before the body that all records share
    int64_t head_size
    const uint8_t* topic
    int64_t topic_size


cdef void encode_all(
    const Fields* fields, const Slice* bodies, const Slice* properties, int64_t count, uint8_t* p, uint32_t* sizes
) noexcept nogil:
    cdef int64_t row
    cdef uint32_t sys_flag
    for row in range(count):
        memcpy(p, fields.head, <size_t>fields.head_size)
        put32(p, sizes[row])
        put32(p + 8, crc32_of(bodies[row].data, <size_t>bodies[row].size) & MASK)
        put32(p + 12, <uint32_t>fields.queue_ids[row * fields.queue_step])
        put32(p + 16, <uint32_t>fields.flags[row * fields.flag_step])
        sys_flag = <uint32_t>fields.sys_flags[row * fields.sys_flag_step]
        put32(p + 36, sys_flag & ~<uint32_t>(BORN_HOST_V6 | STORE_HOST_V6) | fields.host_flags)
        put64(p + 40, <uint64_t>fields.born_timestamps[row * fields.born_step])
        put32(p + fields.head_size - 4, <uint32_t>bodies[row].size)
        p += fields.head_size
        memcpy(p, bodies[row].data, <size_t>bodies[row].size)
        p += bodies[row].size
        p[0] = <uint8_t>fields.topic_size
        memcpy(p + 1, fields.topic, <size_t>fields.topic_size)
        p += 1 + fields.topic_size
        p[0] = <uint8_t>(properties[row].size >> 8)
        p[1] = <uint8_t>(properties[row].size & 0xFF)
        memcpy(p + 2, properties[row].data, <size_t>properties[row].size)
        p += 2 + properties[row].size


cdef int64_t step_of(int64_t size, int64_t count) except -1:
    if size != 1 and size != count:
        raise ValueError(f"{size} values for {count} records")
    return 1 if size == count else 0


def encode(
    bytes topic not None,
    queue_ids,
    bodies,
    properties,
    born_timestamps,
    bytes born_host not None,
    bint store_host_v6,
    flags,
    sys_flags,
):
    """Encodes records as `encoding.encode` does, with the same arguments.

    Returns None if something is too long for the format, and for lists with other objects than bytes.

    `bodies` and `properties` are lists of bytes, or (offsets, data) of Arrow binary arrays.  An array with one element
    has the value for all records.
    """
    import numpy as np

    cdef Slices body_slices, property_slices
    try:
        body_slices, property_slices = Slices(bodies), Slices(properties)
    except TypeError:
        return None
    cdef int64_t count = body_slices.count, row, size, total = 0
    cdef int64_t topic_size = PyBytes_GET_SIZE(topic), born_size = PyBytes_GET_SIZE(born_host)
    if property_slices.count != count:
        raise ValueError(f"{count} bodies, {property_slices.count} properties")
    if not 1 <= topic_size <= MAX_TOPIC_SIZE or (born_size != 8 and born_size != 20):
        return None
    cdef uint8_t head[FIXED_SIZE + 2 * V6_MORE]
    cdef Fields fields
    memset(head, 0, sizeof(head))
    put32(head + 4, MAGIC)
    memcpy(head + HEAD_SIZE, PyBytes_AS_STRING(born_host), <size_t>born_size)
    fields.host_flags = (BORN_HOST_V6 if born_size == 20 else 0) | (STORE_HOST_V6 if store_host_v6 else 0)
    fields.head = head
    fields.head_size = FIXED_SIZE + V6_MORE * ((born_size == 20) + store_host_v6)
    fields.topic = <const uint8_t*>PyBytes_AS_STRING(topic)
    fields.topic_size = topic_size
    sizes = np.empty(count, np.uint32)
    if not count:
        return memoryview(b""), sizes
    cdef Buffer size_buffer = Buffer(sizes, 4, True)
    cdef uint32_t* record_sizes = <uint32_t*>size_buffer.data
    for row in range(count):
        size = fields.head_size + body_slices.items[row].size + 1 + topic_size + 2 + property_slices.items[row].size
        if property_slices.items[row].size > MAX_PROPERTIES_SIZE or size > 0x7FFFFFFF:
            return None
        record_sizes[row] = <uint32_t>size
        total += size
    cdef Buffer queues = Buffer(queue_ids, 4), flag_buffer = Buffer(flags, 4), sys_flag_buffer = Buffer(sys_flags, 4)
    cdef Buffer times = Buffer(born_timestamps, 8)
    fields.queue_step = step_of(queues.count, count)
    fields.flag_step = step_of(flag_buffer.count, count)
    fields.sys_flag_step = step_of(sys_flag_buffer.count, count)
    fields.born_step = step_of(times.count, count)
    fields.queue_ids = <const int32_t*>queues.data
    fields.flags = <const int32_t*>flag_buffer.data
    fields.sys_flags = <const int32_t*>sys_flag_buffer.data
    fields.born_timestamps = <const int64_t*>times.data
    data = np.empty(total, np.uint8)
    cdef Buffer target = Buffer(data, 1, True)
    cdef uint8_t* first = <uint8_t*>target.data
    if total > LONG:
        with nogil:
            encode_all(&fields, body_slices.items, property_slices.items, count, first, record_sizes)
    else:
        encode_all(&fields, body_slices.items, property_slices.items, count, first, record_sizes)
    return data.data, sizes
