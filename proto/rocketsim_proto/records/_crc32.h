/* CRC-32 with zlib's polynomial (0xEDB88320, reflected), fast for bodies of some hundred bytes.
 *
 * There are four ways to compute the same checksum.  `crc32_choose` selects one when the module is imported:
 *   - On x86 with PCLMULQDQ, 64 bytes a step are folded by carry-less multiplication, as described in Intel's paper
 *     "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction".
 *   - On x86 with VPCLMULQDQ, 128 bytes a step are folded, which is almost twice as fast from about 400 bytes on.
 *   - On Arm with CRC32 instructions, each instruction takes 8 bytes.
 *   - On other processors tables are used ("slicing by 16").  x86 also uses the tables for the last bytes of a body.
 *
 * Every function reads exactly the `size` bytes that it is given.
 */
#ifndef ROCKETSIM_CRC32_H
#define ROCKETSIM_CRC32_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t crc32_table[16][256];

static void crc32_fill_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t sum = byte;
        for (int bit = 0; bit < 8; bit++)
            sum = (sum >> 1) ^ ((sum & 1) ? 0xEDB88320u : 0);
        crc32_table[0][byte] = sum;
    }
    for (int behind = 1; behind < 16; behind++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t sum = crc32_table[behind - 1][byte];
            crc32_table[behind][byte] = (sum >> 8) ^ crc32_table[0][sum & 0xff];
        }
}

static inline uint32_t crc32_little_endian(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Returns what four bytes add to a checksum if `behind` further bytes of the same step follow the four bytes. */
static inline uint32_t crc32_four(uint32_t word, int behind)
{
    return crc32_table[behind + 3][word & 0xff] ^ crc32_table[behind + 2][word >> 8 & 0xff] ^
           crc32_table[behind + 1][word >> 16 & 0xff] ^ crc32_table[behind][word >> 24];
}

/* Continues the checksum `sum` by tables, without CRC-32's inversions at the beginning and at the end. */
static uint32_t crc32_by_table(uint32_t sum, const uint8_t *data, size_t size)
{
    for (; size >= 16; data += 16, size -= 16)
        sum = crc32_four(sum ^ crc32_little_endian(data), 12) ^ crc32_four(crc32_little_endian(data + 4), 8) ^
              crc32_four(crc32_little_endian(data + 8), 4) ^ crc32_four(crc32_little_endian(data + 12), 0);
    if (size >= 8) {
        sum = crc32_four(sum ^ crc32_little_endian(data), 4) ^ crc32_four(crc32_little_endian(data + 4), 0);
        data += 8, size -= 8;
    }
    if (size >= 4) {
        sum = crc32_four(sum ^ crc32_little_endian(data), 0);
        data += 4, size -= 4;
    }
    for (; size; data++, size--)
        sum = (sum >> 8) ^ crc32_table[0][(sum ^ *data) & 0xff];
    return sum;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#ifndef CRC32_AHEAD
#define CRC32_AHEAD 1024 /* The processor fetches bytes this far ahead, which are usually those of the next records. */
#endif

#define CRC32_WIDE 256 /* bytes of a body from which on the wide instructions are faster */

static const char *const crc32_ways[] = {"table", "pclmul", "vpclmul"};
static int crc32_is_wide;

static int crc32_best(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("pclmul") || !__builtin_cpu_supports("sse4.1"))
        return 0;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("vpclmulqdq") ? 2 : 1;
}

/* Moves `folded` on by the distance that the two constants stand for, and adds `next`, the 16 bytes there. */
__attribute__((target("pclmul,sse4.1"))) static inline __m128i
crc32_fold(__m128i folded, __m128i constants, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(folded, constants, 0x00);
    __m128i high = _mm_clmulepi64_si128(folded, constants, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* Folds as many multiples of 128 bytes as `data` has, at least one, into the 64 bytes of `folded`.  Returns how many
 * bytes it has folded. */
__attribute__((target("avx2,vpclmulqdq"))) static size_t
crc32_fold_wide(uint32_t sum, const uint8_t *data, size_t size, __m128i folded[4])
{
    /* The constants for folding by 128 and by 64 bytes, for both halves of a register. */
    const __m256i by_128 = _mm256_set_epi64x(0x014a7fe880, 0x01e88ef372, 0x014a7fe880, 0x01e88ef372);
    const __m256i by_64 = _mm256_set_epi64x(0x01c6e41596, 0x0154442bd4, 0x01c6e41596, 0x0154442bd4);
    const uint8_t *at = data;
#define CRC32_LOAD(offset) _mm256_loadu_si256((const __m256i *)(const void *)(at + (offset)))
#define CRC32_FOLD(folded, constants, next)                                                                            \
    _mm256_xor_si256(_mm256_xor_si256(_mm256_clmulepi64_epi128(folded, constants, 0x00),                               \
                                      _mm256_clmulepi64_epi128(folded, constants, 0x11)),                              \
                     next)
    __m256i first = _mm256_xor_si256(CRC32_LOAD(0), _mm256_set_epi32(0, 0, 0, 0, 0, 0, 0, (int)sum));
    __m256i second = CRC32_LOAD(32), third = CRC32_LOAD(64), fourth = CRC32_LOAD(96);
    for (at += 128, size -= 128; size >= 128; at += 128, size -= 128) {
        __builtin_prefetch(at + CRC32_AHEAD);
        __builtin_prefetch(at + CRC32_AHEAD + 64);
        first = CRC32_FOLD(first, by_128, CRC32_LOAD(0));
        second = CRC32_FOLD(second, by_128, CRC32_LOAD(32));
        third = CRC32_FOLD(third, by_128, CRC32_LOAD(64));
        fourth = CRC32_FOLD(fourth, by_128, CRC32_LOAD(96));
    }
    third = CRC32_FOLD(first, by_64, third);
    fourth = CRC32_FOLD(second, by_64, fourth);
#undef CRC32_LOAD
#undef CRC32_FOLD
    folded[0] = _mm256_castsi256_si128(third), folded[1] = _mm256_extracti128_si256(third, 1);
    folded[2] = _mm256_castsi256_si128(fourth), folded[3] = _mm256_extracti128_si256(fourth, 1);
    return (size_t)(at - data);
}

__attribute__((target("pclmul,sse4.1"))) static uint32_t
crc32_by_hardware(uint32_t sum, const uint8_t *data, size_t size)
{
    if (size < 32)
        return crc32_by_table(sum, data, size);
    /* The constants x^n mod P for folding by 64 to 16 bytes and from 64 to 32 bits, and those of Barrett. */
    const __m128i by_64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i by_48 = _mm_set_epi64x(0x0174359406, 0x003db1ecdc);
    const __m128i by_32 = _mm_set_epi64x(0x015a546366, 0x00f1da05aa);
    const __m128i by_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i to_32 = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low_32 = _mm_set_epi32(0, -1, 0, -1);
#define CRC32_LOAD(offset) _mm_loadu_si128((const __m128i *)(const void *)(data + (offset)))
    __m128i folded = _mm_xor_si128(CRC32_LOAD(0), _mm_cvtsi32_si128((int)sum));
    if (size >= 64) {
        __m128i second = CRC32_LOAD(16), third = CRC32_LOAD(32), fourth = CRC32_LOAD(48);
        size_t taken = 64;
        if (crc32_is_wide && size >= CRC32_WIDE) {
            __m128i wide[4];
            taken = crc32_fold_wide(sum, data, size, wide);
            folded = wide[0], second = wide[1], third = wide[2], fourth = wide[3];
        }
        for (data += taken, size -= taken; size >= 64; data += 64, size -= 64) {
            __builtin_prefetch(data + CRC32_AHEAD);
            folded = crc32_fold(folded, by_64, CRC32_LOAD(0));
            second = crc32_fold(second, by_64, CRC32_LOAD(16));
            third = crc32_fold(third, by_64, CRC32_LOAD(32));
            fourth = crc32_fold(fourth, by_64, CRC32_LOAD(48));
        }
        /* These three steps do not wait for each other. */
        folded = crc32_fold(folded, by_48, fourth);
        folded = crc32_fold(second, by_32, folded);
        folded = crc32_fold(third, by_16, folded);
    } else {
        data += 16, size -= 16;
    }
    for (; size >= 16; data += 16, size -= 16)
        folded = crc32_fold(folded, by_16, CRC32_LOAD(0));
#undef CRC32_LOAD
    /* Reduce 128 bits to 96, then to 64, and by Barrett's reduction to 32. */
    folded = _mm_xor_si128(_mm_srli_si128(folded, 8), _mm_clmulepi64_si128(folded, by_16, 0x10));
    folded = _mm_xor_si128(_mm_srli_si128(folded, 4),
                           _mm_clmulepi64_si128(_mm_and_si128(folded, low_32), to_32, 0x00));
    __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(folded, low_32), barrett, 0x10);
    __m128i product = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_32), barrett, 0x00);
    sum = (uint32_t)_mm_extract_epi32(_mm_xor_si128(folded, product), 1);
    return crc32_by_table(sum, data, size);
}

#elif defined(__aarch64__) && defined(__linux__) && defined(__GNUC__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define CRC32_HWCAP (1 << 7) /* HWCAP_CRC32 of <asm/hwcap.h> */

static const char *const crc32_ways[] = {"table", "armv8-crc32"};
static int crc32_is_wide;

static int crc32_best(void) { return (getauxval(AT_HWCAP) & CRC32_HWCAP) != 0; }

__attribute__((target("+crc"))) static uint32_t crc32_by_hardware(uint32_t sum, const uint8_t *data, size_t size)
{
    uint64_t word;
    for (; size >= 8; data += 8, size -= 8) {
        memcpy(&word, data, 8);
        sum = __crc32d(sum, word);
    }
    for (; size; data++, size--)
        sum = __crc32b(sum, *data);
    return sum;
}

#else
static const char *const crc32_ways[] = {"table"};
static int crc32_is_wide;

static int crc32_best(void) { return 0; }

static uint32_t crc32_by_hardware(uint32_t sum, const uint8_t *data, size_t size)
{
    return crc32_by_table(sum, data, size);
}
#endif

static uint32_t (*crc32_continue)(uint32_t, const uint8_t *, size_t) = crc32_by_table;

/* Selects a way by its place in `crc32_ways`, in which a faster way is behind a slower one, and returns its name.  If the
 * processor cannot run this way, the fastest one that it can run is selected. */
static const char *crc32_choose(int way)
{
    int best = crc32_best();
    int chosen = way < best ? way : best;
    if (!crc32_table[0][1])
        crc32_fill_table();
    crc32_continue = chosen ? crc32_by_hardware : crc32_by_table;
    crc32_is_wide = chosen > 1;
    return crc32_ways[chosen];
}

static inline uint32_t crc32_of(const uint8_t *data, size_t size)
{
    return ~crc32_continue(0xFFFFFFFFu, data, size);
}

#endif
