# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Walks, checks and encodes record bytes in compiled code; `kernels.py` selects this module or the code in Python.

`record.py` shows the bytes of a record, and stays the only place that says what is wrong with one: a function here
answers None (or -1) for bytes that it does not accept, and its caller then runs the code in Python, which raises the
error.  So a verdict that is too strict costs time and one that is too lenient would be a defect: the tests compare.

The bytes are hostile.  Each length is compared with the room that is left before a byte behind it is read; sums are
taken in 64 bits, of numbers that have 32 bits, and cannot overflow.  The GIL is released for work that takes long: for a
few records, to get it back would take longer than the work.  numpy is imported by the functions that need it, since
processes that only look at options import this module, too.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset

cdef extern from "_crc32.h" nogil:
    const char* crc32_choose(int hardware)
    uint32_t crc32_of(const uint8_t* data, size_t size)

cdef enum:
    MAGIC = 0xDAA320A7
    MAGIC_V2 = 0xDAA320AB
    MIN_SIZE = 91
    HEAD_SIZE = 48  # everything before the born host
    FIXED_SIZE = 88  # everything before the body, with IPv4 hosts
    V6_MORE = 12  # bytes that an IPv6 host has more
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NAME_END = 1
    PROPERTY_END = 2
    SECTOR = 512
    MAX_TOPIC_SIZE = 127
    MAX_PROPERTIES_SIZE = 32767
    LONG = 1 << 16  # bytes of work for which it pays to release the GIL

VERSION = 1  # as in `kernels.py`
cdef uint32_t MASK = 0x7FFFFFFF  # RocketMQ keeps CRC-32 without its top bit


def choose_crc(bint hardware=True):
    """Selects how checksums are computed, and returns its name: "pclmul", "armv8-crc32" or "table"."""
    return crc32_choose(hardware).decode()


choose_crc()


cdef class Buffer:
    """The memory of a contiguous object, as long as this object lives.

    (Cython's typed memoryviews do the same, and take ten times as long to compile and several times as long to make.)
    """

    cdef Py_buffer view
    cdef bint held
    cdef char* data
    cdef int64_t count  # of items

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
    """As `record.locate`: finds the parts of the record at `at`; False unless all lengths are consistent."""
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


cdef int64_t walk_all(
    const uint8_t* data, int64_t end, const int64_t* sizes, int64_t count, bint crc, int64_t* table, int64_t room
) noexcept nogil:
    """Fills the table; returns the number of records, or -1.  `sizes` may be NULL, `count` -1: not known."""
    cdef Place place
    cdef int64_t at = 0, row = 0
    while at < end:
        if row >= room or not located(data, at, end, &place):
            return -1
        if sizes != NULL and sizes[row] != place.size:
            return -1
        if crc and not crc_fits(data, &place):
            return -1
        keep(table, room, row, &place)
        at += place.size
        row += 1
    return row if count < 0 or row == count else -1


def walk(data, sizes=None, int64_t count=-1, bint crc=False):
    """Locates the records that fill `data` exactly, one behind the other, and compares sizes, count and checksums.

    Returns eight int64 columns: start and size of the record, its body, its topic and its properties.  Returns None if
    something is wrong: a length, a magic number, another size than announced, another number of records, a checksum.
    """
    import numpy as np

    cdef Buffer source = Buffer(data, 1), announced
    cdef int64_t end = source.count, room = end // MIN_SIZE, found
    cdef const int64_t* announced_sizes = NULL
    if sizes is not None:
        announced = Buffer(sizes, 8)
        if count >= 0 and announced.count != count:
            return None
        count = announced.count
        announced_sizes = <const int64_t*>announced.data
    if count > room:
        return None
    if count >= 0:
        room = count
    table = np.empty((8, room), np.int64)
    if not room:
        return None if end else table
    cdef Buffer places = Buffer(table, 8, True)
    cdef const uint8_t* first = <const uint8_t*>source.data
    cdef int64_t* columns = <int64_t*>places.data
    if end > LONG:
        with nogil:
            found = walk_all(first, end, announced_sizes, count, crc, columns, room)
    else:
        found = walk_all(first, end, announced_sizes, count, crc, columns, room)
    if found < 0:
        return None
    return table if found == room else table[:, :found].copy()


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
    """Locates the records at these starts, in any order; the columns of `walk`, or None if a record is not valid."""
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
    if count > LONG // MIN_SIZE:
        with nogil:
            found = place_all(first, end, begins, announced, count, columns)
    else:
        found = place_all(first, end, begins, announced, count, columns)
    return table if found == count else None


def locate(data, int64_t at):
    """Returns the fields of `record.Parts` for the record at `at`, or None if it is not valid.  Ignores its checksum."""
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


cdef void sum_all(
    const uint8_t* data, const int64_t* starts, const int64_t* sizes, int64_t count, uint32_t* sums
) noexcept nogil:
    cdef int64_t row
    for row in range(count):
        sums[row] = crc32_of(data + starts[row], <size_t>sizes[row]) & MASK


def crcs(data, starts, sizes):
    """Returns the checksum of each slice of `data`, as `record.body_crc`; ValueError for a slice that is not inside."""
    import numpy as np

    cdef Buffer source = Buffer(data, 1), start_buffer = Buffer(starts, 8), size_buffer = Buffer(sizes, 8)
    cdef const int64_t* begin = <const int64_t*>start_buffer.data
    cdef const int64_t* size = <const int64_t*>size_buffer.data
    cdef int64_t end = source.count, count = start_buffer.count, row, total = 0
    if size_buffer.count != count:
        raise ValueError(f"{count} starts, {size_buffer.count} sizes")
    for row in range(count):
        if begin[row] < 0 or size[row] < 0 or begin[row] > end or size[row] > end - begin[row]:
            raise ValueError(f"slice {row} is not inside the buffer of {end} bytes")
        total += size[row]
    sums = np.empty(count, np.uint32)
    cdef Buffer target = Buffer(sums, 4, True)
    cdef const uint8_t* first = <const uint8_t*>source.data
    cdef uint32_t* found = <uint32_t*>target.data
    if total > LONG:
        with nogil:
            sum_all(first, begin, size, count, found)
    else:
        sum_all(first, begin, size, count, found)
    return sums


# --- what a broker asks of a client's frame ---------------------------------------------------------------------------


cdef struct Rules:
    const uint8_t* topic
    int64_t topic_size
    int64_t max_body_size
    int64_t max_record_size
    uint32_t other_flags  # bits that a client may not set
    uint32_t store_host  # STORE_HOST_V6, or 0
    const uint8_t** names
    const int64_t* name_sizes
    int64_t name_count
    uint64_t found  # bit n: a record has the n-th name


cdef inline bint has_lost_sector(const uint8_t* p, int64_t size) noexcept nogil:
    """True if the bytes end with a zero byte or have a sector of zeros, at any place."""
    cdef int64_t at, begin, end
    if size and p[size - 1] == 0:
        return True
    at = SECTOR - 1  # SECTOR zeros in a row cover one of these places
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


cdef inline void note_names(const uint8_t* p, int64_t size, Rules* rules) noexcept nogil:
    """Notes which names the properties have.  A piece without a separator, a name or a value is no property."""
    cdef const uint8_t* end = p + size
    cdef const uint8_t* stop
    cdef const uint8_t* separator
    cdef int64_t name_size, number
    while p < end:
        stop = <const uint8_t*>memchr(p, PROPERTY_END, <size_t>(end - p))
        if stop == NULL:
            stop = end
        separator = <const uint8_t*>memchr(p, NAME_END, <size_t>(stop - p))
        if separator != NULL and separator > p and separator + 1 < stop:
            name_size = separator - p
            for number in range(rules.name_count):
                if rules.name_sizes[number] == name_size and memcmp(p, rules.names[number], <size_t>name_size) == 0:
                    rules.found |= (<uint64_t>1) << number
        p = stop + 1


cdef int64_t check_all(
    const uint8_t* data, int64_t end, int64_t count, Rules* rules, int64_t* table, int32_t* queue_ids
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
        queue_ids[row] = <int32_t>be32(data + at + 12)
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
    """Checks a client's frame in one pass: all that `walk` does, and all rules that `broker/frame.py` has for records.

    Returns None if a rule is broken, and otherwise (the columns of `walk`, the queue ids, bits for those of `names` that
    a record has as a property).
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
    table = np.empty((8, count), np.int64)
    queue_ids = np.empty(count, np.int32)
    cdef Buffer places = Buffer(table, 8, True), queues = Buffer(queue_ids, 4, True)
    cdef const uint8_t* first = <const uint8_t*>source.data
    cdef int64_t* columns = <int64_t*>places.data
    cdef int32_t* ids = <int32_t*>queues.data
    if end > LONG:
        with nogil:
            found = check_all(first, end, count, &rules, columns, ids)
    else:
        found = check_all(first, end, count, &rules, columns, ids)
    if found != count:
        return None
    return table, queue_ids, rules.found


# --- encoding ---------------------------------------------------------------------------------------------------------


cdef struct Slice:
    const uint8_t* data
    int64_t size


cdef class Slices:
    """Pieces of bytes: a list of bytes objects, or (offsets, data) of an Arrow binary array.  It keeps them alive."""

    cdef Slice* items
    cdef int64_t count
    cdef object owner
    cdef Buffer offsets
    cdef Buffer data

    def __cinit__(self, pieces):
        self.items = NULL
        if isinstance(pieces, tuple):
            self.of_arrow(pieces[0], pieces[1])
        else:
            self.of_list(pieces)

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

    cdef of_arrow(self, offsets, data):
        cdef int64_t row
        self.offsets, self.data = Buffer(offsets, 4), Buffer(data, 1)
        cdef const int32_t* bounds = <const int32_t*>self.offsets.data
        if self.offsets.count < 1 or bounds[0] < 0:
            raise ValueError("offsets without a beginning")
        self.make_room(self.offsets.count - 1)
        for row in range(self.count):
            if bounds[row + 1] < bounds[row] or bounds[row + 1] > self.data.count:
                raise ValueError(f"slice {row} is not inside the buffer")
            self.items[row].data = <const uint8_t*>self.data.data + bounds[row]
            self.items[row].size = bounds[row + 1] - bounds[row]

    def __dealloc__(self):
        PyMem_Free(self.items)


cdef struct Fields:
    const int32_t* queue_ids  # one for each record, as in the others, or one for all records
    const int32_t* flags
    const int32_t* sys_flags
    const int64_t* born_timestamps
    int64_t queue_step  # 1, or 0 for one value
    int64_t flag_step
    int64_t sys_flag_step
    int64_t born_step
    uint32_t host_flags
    uint8_t* head  # what all records have before their bodies
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
    """As `encoding.encode`, whose arguments these are.

    Returns None if something is too long for the format, and for lists with other objects than bytes.

    `bodies` and `properties` are lists of bytes, or (offsets, data) of Arrow binary arrays.  Arrays with one element
    are the value for all records.
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
