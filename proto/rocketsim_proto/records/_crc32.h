/* CRC-32 with zlib's polynomial (0xEDB88320, reflected), fast for bodies of some hundred bytes.
 *
 * There are three ways to compute the same checksum.  `crc32_choose` selects one when the module is imported:
 *   - On x86 with PCLMULQDQ, 64 bytes a step are folded by carry-less multiplication, as described in Intel's paper
 *     "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction".
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
#define CRC32_HARDWARE "pclmul"

static int crc32_has_hardware(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}

/* Moves `folded` on by the distance that the two constants stand for, and adds `next`, the 16 bytes there. */
__attribute__((target("pclmul,sse4.1"))) static inline __m128i
crc32_fold(__m128i folded, __m128i constants, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(folded, constants, 0x00);
    __m128i high = _mm_clmulepi64_si128(folded, constants, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

__attribute__((target("pclmul,sse4.1"))) static uint32_t
crc32_by_hardware(uint32_t sum, const uint8_t *data, size_t size)
{
    if (size < 32)
        return crc32_by_table(sum, data, size);
    /* The constants x^n mod P for folding by 64 bytes, by 16 bytes and from 64 to 32 bits, and those of Barrett. */
    const __m128i by_64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i by_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i to_32 = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low_32 = _mm_set_epi32(0, -1, 0, -1);
#define CRC32_LOAD(offset) _mm_loadu_si128((const __m128i *)(const void *)(data + (offset)))
    __m128i folded = _mm_xor_si128(CRC32_LOAD(0), _mm_cvtsi32_si128((int)sum));
    if (size >= 64) {
        __m128i second = CRC32_LOAD(16), third = CRC32_LOAD(32), fourth = CRC32_LOAD(48);
        for (data += 64, size -= 64; size >= 64; data += 64, size -= 64) {
            folded = crc32_fold(folded, by_64, CRC32_LOAD(0));
            second = crc32_fold(second, by_64, CRC32_LOAD(16));
            third = crc32_fold(third, by_64, CRC32_LOAD(32));
            fourth = crc32_fold(fourth, by_64, CRC32_LOAD(48));
        }
        folded = crc32_fold(folded, by_16, second);
        folded = crc32_fold(folded, by_16, third);
        folded = crc32_fold(folded, by_16, fourth);
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
#define CRC32_HARDWARE "armv8-crc32"
#define CRC32_HWCAP (1 << 7) /* HWCAP_CRC32 of <asm/hwcap.h> */

static int crc32_has_hardware(void) { return (getauxval(AT_HWCAP) & CRC32_HWCAP) != 0; }

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
#define CRC32_HARDWARE ""

static int crc32_has_hardware(void) { return 0; }

static uint32_t crc32_by_hardware(uint32_t sum, const uint8_t *data, size_t size)
{
    return crc32_by_table(sum, data, size);
}
#endif

static uint32_t (*crc32_continue)(uint32_t, const uint8_t *, size_t) = crc32_by_table;

/* Selects the instructions of the processor if they are wanted and available. Returns their name, or "table". */
static const char *crc32_choose(int hardware)
{
    int chosen = hardware && crc32_has_hardware();
    if (!crc32_table[0][1])
        crc32_fill_table();
    crc32_continue = chosen ? crc32_by_hardware : crc32_by_table;
    return chosen ? CRC32_HARDWARE : "table";
}

static inline uint32_t crc32_of(const uint8_t *data, size_t size)
{
    return ~crc32_continue(0xFFFFFFFFu, data, size);
}

#endif
